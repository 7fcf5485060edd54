"""Digests: one canonical spelling of a JSON value, and what is hashed for which purpose."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from isolation.spec import JobSpec

SPEC_HASH_VERSION = 1
"""Raised whenever the hashed form changes, so that two versions of us never call different things equal."""


def canonical_json(value: object) -> bytes:
    """The value's one spelling: members sorted by code point, no spaces, UTF-8.

    Raises ValueError for NaN and infinities, TypeError for what is no JSON.
    """
    _check_names(value)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def _check_names(value: object) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise TypeError("a member's name is not a string")
            _check_names(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_names(item)


def sha256_hex(data: bytes) -> str:
    """64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def spec_hash(spec: JobSpec) -> str:
    """Tells whether two specs ask for the same run.

    Defaults are filled in and the order of members does not matter. Of workspace and input only their presence takes
    part: paths differ between replicas, and content may change between two calls. The capability takes part by name.
    """
    body = spec.model_dump(mode="json", by_alias=True, exclude={"cpus", "workspace", "input"})
    body["millicores"] = spec.millicores
    body["hasWorkspace"] = spec.workspace is not None
    body["hasInput"] = spec.input is not None
    return sha256_hex(canonical_json({"hashVersion": SPEC_HASH_VERSION, "spec": body}))


def object_digest(manifest: Mapping[str, Any]) -> str:
    """Digest of one manifest, as it was sent; evidence names the attested pod and policy by it."""
    return sha256_hex(canonical_json(dict(manifest)))


def manifest_digest(pod: Mapping[str, Any], policy: Mapping[str, Any]) -> str:
    """Tells whether two replicas would build the same objects for a run.

    Blind to what is known only after creation: the uids of owners, and the name of the run's Secret, which carries one.
    """
    return sha256_hex(canonical_json([_blind(dict(pod)), _blind(dict(policy))]))


def _blind(value: Any) -> Any:
    if isinstance(value, list):
        return [_blind(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: _blinded_member(name, item) for name, item in value.items()}


def _blinded_member(name: str, value: Any) -> Any:
    if name == "ownerReferences" and isinstance(value, list):
        return [{k: v for k, v in owner.items() if k != "uid"} for owner in value]
    if name == "secretKeyRef" and isinstance(value, dict):
        return {k: v for k, v in value.items() if k != "name"}
    return _blind(value)
