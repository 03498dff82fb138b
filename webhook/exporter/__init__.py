"""The observation layer: what admission decided and what the cluster then did, as data, metrics and a dashboard."""
