"""The run's Secret: the one value that the worker gets and nobody else sees. Written once, and never read back."""

import base64
from typing import Any

from isolation import labels, limits, names
from isolation.objects.owner import Owner
from isolation.options import IsolationOptions
from isolation.spec import JobSpec


class CapabilityInvalid(ValueError):
    """The operator's resolver gave a value that cannot be a capability; the text says why, without the value."""


def build_secret(
    spec: JobSpec, options: IsolationOptions, *, value: str, pod: Owner, record_uid: str
) -> dict[str, Any]:
    """The Secret of a run, owned by its pod and immutable. Raises CapabilityInvalid."""
    check_capability(value)
    token = names.token(spec.run_id)
    return {
        "apiVersion": "v1",
        "data": {names.CAPABILITY_KEY: base64.b64encode(value.encode("utf-8")).decode("ascii")},
        "immutable": True,
        "kind": "Secret",
        "metadata": {
            "annotations": {labels.RUN_ID: spec.run_id},
            "labels": labels.managed("run"),
            "name": names.secret_name(token, record_uid),
            "namespace": options.namespace,
            "ownerReferences": [pod.reference()],
        },
        "type": "Opaque",
    }


def check_capability(value: str) -> None:
    """Refuse what cannot be a capability: 16 to 512 printable ASCII characters. Raises CapabilityInvalid."""
    least, most = limits.CAPABILITY_VALUE.least, limits.CAPABILITY_VALUE.most
    if not least <= len(value) <= most:
        raise CapabilityInvalid(f"a capability has {least} to {most} characters")
    if not (value.isascii() and value.isprintable()):
        raise CapabilityInvalid("a capability is made of printable ASCII characters")
