"""What a failed worker says of itself, and what its result is worth. Pure.

The worker is not trusted: of its output only a code from a fixed vocabulary enters the record, never its text.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from launcher.errors import CODES
from records.canonical import ARTIFACT_LIMIT, artifact_problem

LINES = 8
"""Of the worker's last output that may hold its diagnostic."""

BYTES = 128 * 1024
"""Of the worker's last output that are looked at."""

VOCABULARY = re.compile(r"worker_[a-z0-9_]{1,57}")
"""A worker's codes: at most 64 characters, and all begin alike, so that none can be taken for one of Podgate's own."""

RESULT_BYTES = ARTIFACT_LIMIT
"""Of ``output/result.json``, as it is written and as it is kept."""

Artifacts = Literal["collected", "absent", "invalid"]


@dataclass(frozen=True)
class Judged:
    """What a result file is worth. ``problem`` is a code and becomes the diagnostic; the run stays succeeded."""

    artifacts: Artifacts
    artifact: Mapping[str, Any] | None = None
    problem: str | None = None


def diagnostic_of(log: bytes) -> str | None:
    """Return the newest code in the log's last lines: a JSON object on a line of its own, with ``error``."""
    for line in reversed(log[-BYTES:].splitlines()[-LINES:]):
        said = _object(line)
        code = said.get("error") if said is not None else None
        if isinstance(code, str) and _workers_own(code):
            return code
    return None


def _workers_own(code: str) -> bool:
    """Two codes of ours begin like a worker's: ``worker_failed`` and ``worker_start_failed`` are for us to say."""
    return VOCABULARY.fullmatch(code) is not None and code not in CODES


def absent(*, required: bool) -> Judged:
    """Judge a result that was not written."""
    return Judged("absent", problem="result_missing" if required else None)


def too_large() -> Judged:
    """Judge a result that is longer than ``RESULT_BYTES``."""
    return Judged("invalid", problem="result_too_large")


def unreadable() -> Judged:
    """Judge a result that is no regular file."""
    return Judged("invalid", problem="result_invalid")


def judge_result(content: bytes, run_id: str | None) -> Judged:
    """Judge a result that was read whole: one JSON object that can be kept, of this run if it names one."""
    if len(content) > RESULT_BYTES:
        return too_large()
    artifact = _object(content)
    if artifact is None:
        return unreadable()
    if "runId" in artifact and artifact["runId"] != run_id:
        return Judged("invalid", problem="result_run_mismatch")
    problem = artifact_problem(artifact)
    if problem is not None:
        # A spelling can get longer when it is written again; everything else that cannot be kept is no JSON for us.
        return too_large() if "bytes of canonical JSON" in problem else unreadable()
    return Judged("collected", artifact)


def _object(text: bytes) -> dict[str, Any] | None:
    """Read strict JSON in UTF-8: no NaN, no key twice; None for anything but an object."""
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found
