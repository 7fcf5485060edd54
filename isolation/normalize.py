"""What the API server itself does to an object before it is read back. Everything else is a difference.

Our manifests say every default in the server's own spelling, so this list is short, and each line of it is needed:
metadata of the server, ``status``, the node that the scheduler chose, and what only a named class can know.
"""

from collections.abc import Mapping
from typing import Any

from isolation import quantity

Json = dict[str, Any]
Keys = tuple[str, ...]
"""Member names from the root down; ``*`` stands for an element of a list."""

SERVER_METADATA = frozenset({"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"})
"""Filled in by the server and compared by nobody here; uid and generation can be asked for."""

MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "initContainers": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists whose elements have names: they are matched by them, and their order is compared as well."""

BY_CONTENT = frozenset({"tolerations"})
"""Lists whose elements have no names and mean the same wherever they stand: one put in front changes no other."""

_AMOUNTS = frozenset({"limits", "requests"})


def comparable(document: Mapping[str, Any]) -> Json:
    """The object without ``status`` and without the server's own metadata; the argument is left as it is."""
    kept = {name: value for name, value in document.items() if name != "status"}
    metadata = kept.get("metadata")
    if isinstance(metadata, dict):
        kept["metadata"] = {name: value for name, value in metadata.items() if name not in SERVER_METADATA}
    return kept


def filled_by_server(sent: Mapping[str, Any], keys: Keys, value: Any) -> bool:
    """True for an addition that the server makes to every pod like the one that was sent.

    The node's name comes with scheduling. Priority and overhead are known to the classes alone, and are let through
    only when the manifest names the class.
    """
    spec = sent.get("spec")
    if sent.get("kind") != "Pod" or not isinstance(spec, dict):
        return False
    match keys:
        case ("spec", "nodeName"):
            return isinstance(value, str)
        case ("spec", "priority"):
            return "priorityClassName" in spec and type(value) is int
        case ("spec", "preemptionPolicy"):
            return "priorityClassName" in spec and value in {"PreemptLowerPriority", "Never"}
        case ("spec", "overhead"):
            return "runtimeClassName" in spec and isinstance(value, dict) and all(map(_is_amount, value.values()))
        case _:
            return False


def _is_amount(value: Any) -> bool:
    return quantity.parse(value) is not None


def is_quantity(keys: Keys) -> bool:
    """True where the API has a quantity, which is compared by its value and not by its spelling."""
    match keys:
        case (*_, "resources", kind, _) if kind in _AMOUNTS:
            return True
        case (*_, "emptyDir", "sizeLimit"):
            return True
        case _:
            return False
