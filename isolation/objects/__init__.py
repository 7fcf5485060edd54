"""Builders of every object that we create: plain JSON-shaped dicts, from values alone.

Each manifest says every default explicitly and in the API server's own spelling, so that what is stored differs from
what was sent by the server's own metadata only.
"""

from isolation.objects.owner import Owner
from isolation.objects.pod import build_pod
from isolation.objects.policy import build_policy
from isolation.objects.secret import build_secret

__all__ = ["Owner", "build_pod", "build_policy", "build_secret"]
