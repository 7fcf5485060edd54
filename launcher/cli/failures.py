"""How a command that could not do it says so: a stable code, a sentence, where to look; with --json as JSON."""

import json
import traceback
from collections.abc import Mapping
from typing import Any

import click

from launcher.cli import exitcodes
from launcher.cluster.errors import ClusterError
from launcher.errors import CODES, PodgateError

_STAGES = frozenset({"preflight", "provision", "proof", "seed", "release"})
"""Stages that tell a person something the message does not."""
_LISTED = 40
"""Violations shown to a person; ``--json`` lists all."""


def report(error: Exception, *, as_json: bool, failure: int = exitcodes.OWN_FAILURE) -> int:
    """Print the error on stderr and return the exit code. ``failure`` is this command's code for all but bad input."""
    known = known_error(error)
    click.echo(json.dumps(known.as_json(), ensure_ascii=False) if as_json else text(known), err=True)
    return exitcodes.of_error(known.code, failure=failure)


def known_error(error: Exception) -> PodgateError:
    """Return the error under a stable code. Foreign messages are not repeated: they may hold headers."""
    if isinstance(error, PodgateError):
        return error
    if isinstance(error, click.ClickException):
        return PodgateError("usage_invalid", error.format_message())
    if isinstance(error, ClusterError):
        return _of_cluster(error)
    if hasattr(error, "violations"):  # isolation.spec.SpecInvalid, which must not be imported for help's sake
        return PodgateError(
            "job_spec_invalid", "The spec is not valid; nothing was created.", violations=error.violations
        )
    return PodgateError(
        "internal_error", f"{type(error).__name__} at {_place(error)}; the run, if there is one, is not affected."
    )


def text(error: PodgateError) -> str:
    """Return the error for a person: code and message, what differs, where to look."""
    stage = f" (stage: {error.stage})" if error.stage in _STAGES else ""
    lines = [f"podgate: {error.code}: {error.message}{stage}"]
    if not _repeated(error):
        lines += [f"  - {_violation(v)}" for v in error.violations[:_LISTED]]
    if len(error.violations) > _LISTED:
        lines.append(f"  … and {len(error.violations) - _LISTED} more; --json lists them all")
    look = CODES[error.code].look
    if look != "-":
        lines.append(f"  Where to look: {look}.")
    return "\n".join(lines)


def _repeated(error: PodgateError) -> bool:
    """True when the only violation is already the message."""
    return len(error.violations) == 1 and str(error.violations[0].get("message") or "\n") in error.message


def _violation(violation: Mapping[str, Any]) -> str:
    path = violation.get("path", "")
    said = [str(violation[key]) for key in ("kind", "message", "hint") if violation.get(key)]
    return f"{path}: {'; '.join(said)}" if said else str(path)


def _of_cluster(error: ClusterError) -> PodgateError:
    from launcher.translate import from_cluster  # noqa: PLC0415 -- it imports pydantic, and help must not

    return from_cluster(error)


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
