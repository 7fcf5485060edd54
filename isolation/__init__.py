"""What a run's objects are and may do. Pure: no IO, no clock, no randomness, and no Kubernetes client."""
