"""A look-alike Kubernetes API on loopback, for people without a cluster and for tests; never for production."""
