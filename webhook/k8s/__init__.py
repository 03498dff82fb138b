"""What Kubernetes means, as pure functions: no project policy in here."""
