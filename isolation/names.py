"""Names of everything we create, derived from the run id alone: any replica finds a run's objects without being told.

Promises: every name is a DNS label (at most 63 characters); names of two runs differ; names of two kinds of pod differ.
"""

import hashlib
import re
from typing import Literal

CanaryKind = Literal["open", "policed"]

PREFIX = "podgate"

WORKER_ACCOUNT = "podgate-worker"
"""Service account of run pods: no rights, no token."""
LAUNCHER_ACCOUNT = "podgate-launcher"
REAPER_ACCOUNT = "podgate-reaper"
WITNESS_ACCOUNT = "podgate-witness"

DEFAULT_DENY = "podgate-default-deny"
"""The policy that selects every pod of the namespace, in both directions; it outlives every run."""

PROVER = "prover"
GATE = "gate"
KEEPER = "keeper"
WORKER = "worker"
WITNESS = "witness"
CANARY = "canary"

CAPABILITY_KEY = "capability"
"""Key of the one value in a run's Secret."""

TOKEN_LENGTH = 20
"""Hex digits: 80 bits, so that nobody meets (or makes) two run ids with one token by chance."""
EGRESS_HASH_LENGTH = 16

_TOKEN = re.compile(r"[0-9a-f]{20}")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def token(run_id: str) -> str:
    """The run's short name: the first 20 hex digits of SHA-256 over the run id's UTF-8 bytes."""
    return hashlib.sha256(run_id.encode("utf-8")).hexdigest()[:TOKEN_LENGTH]


def is_token(text: str) -> bool:
    """True when the text could be a token; anything else in a handle names no run."""
    return _TOKEN.fullmatch(text) is not None


def run_name(token: str) -> str:
    """Name of the run's record and of its pod."""
    return _label(f"{PREFIX}-run-{token}")


def policy_name(token: str) -> str:
    """Name of the run's own policy (scope ``run``)."""
    return run_name(token)


def egress_policy_name(egress_hash: str) -> str:
    """Name of the policy that all runs with one egress profile share (scope ``shared``)."""
    return _label(f"{PREFIX}-egress-{egress_hash}")


def secret_name(token: str, record_uid: str) -> str:
    """Name of the run's Secret. It carries the record's uid, since a Secret cannot be read back to see whose it is."""
    return _label(f"{PREFIX}-run-{token}-{record_uid[:8]}")


def preflight_name(settings_hash: str) -> str:
    """Name of the ConfigMap in which replicas share a preflight's result."""
    return _label(f"{PREFIX}-preflight-{settings_hash}")


def canary_name(suffix: str, kind: CanaryKind) -> str:
    """Name of a preflight's pod, and of its policy. ``suffix``: 8 hex digits of the preflight."""
    return _label(f"{PREFIX}-canary-{suffix}-{kind}")


def _label(name: str) -> str:
    if not _DNS_LABEL.fullmatch(name):
        raise ValueError(f"not a DNS label: {name!r}")
    return name
