"""The door to Kubernetes: what we need of a cluster (``port``), what can go wrong (``errors``), and the real thing."""
