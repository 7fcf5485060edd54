"""Exit codes, as ``docker run`` has them: the worker's own, or one of a few that say whose fault it was."""

from collections.abc import Mapping
from types import MappingProxyType

OK = 0
FINDINGS = 1
USAGE = 2
TIMED_OUT = 124
OWN_FAILURE = 125
OUT_OF_MEMORY = 137
STOPPED = 143
MOST = 255
"""A process's exit code has eight bits."""

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "0": "succeeded; for commands other than run, watch and collect: done",
        "1": "doctor, preflight: something was found. Otherwise the worker's own",
        "2": "wrong usage, setting or spec; nothing was created. Or the worker's own",
        "124": "the worker ran longer than its timeout",
        "125": "Podgate refused or could not do it, or the run was lost",
        "137": "the worker ran out of memory",
        "143": "the run was stopped",
        "other": "the worker's own exit code (run, watch and collect)",
    }
)
"""What ``--help`` and the documentation show."""

_BY_REASON: Mapping[str, int] = MappingProxyType(
    {"timed_out": TIMED_OUT, "oom_killed": OUT_OF_MEMORY, "stopped": STOPPED}
)

WORKERS_OWN = frozenset({"worker_failed", "completed"})
"""Reasons under which the exit code is what the worker itself returned."""

_BAD_INPUT = frozenset({"setting_invalid", "job_spec_invalid", "usage_invalid"})


def of_run(state: str, exit_code: int, reason: str, diagnostic: str | None = None) -> int:
    """Return the process's exit code for a run that ended.

    A worker that ended with 0 but whose required or written result cannot be used is no success: 125.
    """
    if state == "succeeded":
        return OWN_FAILURE if diagnostic and diagnostic.startswith("result_") else OK
    if state == "stopped":
        return STOPPED
    if state == "lost":
        return OWN_FAILURE
    if reason in WORKERS_OWN and 0 < exit_code <= MOST:
        return exit_code
    return _BY_REASON.get(reason, OWN_FAILURE)


def of_error(code: str, *, failure: int = OWN_FAILURE) -> int:
    """Return the exit code for an error's stable code; ``failure`` is what this command uses for all but bad input."""
    return USAGE if code in _BAD_INPUT else failure
