"""Runs untrusted code as Kubernetes pods whose isolation was proven; see ``contract.py`` for what callers use."""
