"""The one spelling of JSON that records are written in."""

import json
from collections.abc import Mapping
from typing import Any

ARTIFACT_LIMIT = 64 * 1024
"""Bytes of a result artifact in canonical JSON; the largest part of a record, and the one a worker can make."""

ARTIFACT_DEPTH = 64
"""Levels of nesting in a result artifact. Readers recurse; a thousand levels fit into 64 KiB and would break them."""


def canonical(value: Any) -> bytes:
    """Return ``value`` as JSON: sorted keys, no spaces, UTF-8. Raises ValueError for NaN and lone surrogates."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def artifact_problem(artifact: Mapping[str, Any]) -> str | None:
    """Return why a result artifact cannot be kept in a record, or None when it can."""
    if _deeper(artifact, ARTIFACT_DEPTH):
        return f"nested deeper than {ARTIFACT_DEPTH} levels"
    try:
        size = len(canonical(artifact))
    except (TypeError, ValueError) as error:
        return f"not JSON: {type(error).__name__}"
    return f"{size} bytes of canonical JSON, more than {ARTIFACT_LIMIT}" if size > ARTIFACT_LIMIT else None


def _deeper(value: Any, levels: int) -> bool:
    """Walk level by level: a recursive walk would itself fail on what it has to find."""
    layer = [value]
    for _ in range(levels):
        layer = [child for item in layer for child in _children(item)]
        if not layer:
            return False
    return any(isinstance(item, Mapping | list | tuple) for item in layer)


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
