"""From our layers' own exceptions to the stable codes that callers see. The original is always the ``__cause__``."""

from collections.abc import Iterator
from contextlib import contextmanager

from launcher.cluster.errors import (
    ClusterError,
    Conflict,
    Misconfigured,
    NotFound,
    Refused,
)
from launcher.errors import PodgateError
from records.errors import (
    IllegalTransition,
    OutcomeUnknown,
    PortError,
    RecordConflict,
    RecordError,
    RecordExists,
    RecordInvalid,
    RecordMissing,
    RecordTooNew,
)

_FORBIDDEN = frozenset({401, 403})
_FENCED = frozenset({"LeaseTaken", "LeaseRenewed", "PodNamed", "ReleaseBegun"})
"""Events of a launch: when one is refused, someone else (a stop, another replica, an observer) was quicker."""


@contextmanager
def translated(stage: str | None = None) -> Iterator[None]:
    """Raise PodgateError for every RecordError and ClusterError of the block; ``stage`` names the step."""
    try:
        yield
    except RecordError as error:
        raise from_record(error, stage) from error
    except ClusterError as error:
        raise from_cluster(error, stage) from error


def from_record(error: RecordError, stage: str | None = None) -> PodgateError:
    """Return what a caller is told about a record's error."""
    code, sentence = _RECORD_WORDS.get(type(error), ("record_conflict", "the record could not be written"))
    if isinstance(error, IllegalTransition):
        code = "launch_superseded" if error.event in _FENCED else "record_conflict"
    return PodgateError(code, f"{sentence}: {error}", stage=stage)


_RECORD_WORDS: dict[type[RecordError], tuple[str, str]] = {
    RecordInvalid: ("record_invalid", "the stored record is not one that Podgate wrote; it was left as it is"),
    RecordTooNew: ("record_too_new", "the record was written by a newer Podgate; it was left as it is"),
    RecordMissing: ("job_not_found", "no run has that handle"),
    RecordExists: ("record_conflict", "another record was created first"),
    RecordConflict: ("record_conflict", "the record changed under every try; nothing was written"),
    IllegalTransition: ("record_conflict", "the record does not allow that any more; nothing was written"),
    OutcomeUnknown: (
        "cluster_unreachable",
        "the API server's answer was lost; the record may have been written or not",
    ),
    PortError: ("record_conflict", "the record could not be written"),
}


def from_cluster(error: ClusterError, stage: str | None = None) -> PodgateError:
    """Return what a caller is told of a cluster's error: operation, status, reason, and a refusal's own sentence."""
    if isinstance(error, Refused):
        return PodgateError(_refusal(error), f"{error}: {error.message}" if error.message else str(error), stage=stage)
    if isinstance(error, NotFound):
        return PodgateError("access_denied", f"not there, or the namespace is not: {error}", stage=stage)
    if isinstance(error, Conflict):
        return PodgateError("record_conflict", f"another write came first: {error}", stage=stage)
    if isinstance(error, Misconfigured):
        return PodgateError("setting_invalid", f"no cluster could be chosen: {error}", stage=stage)
    return PodgateError("cluster_unreachable", f"the API server did not do it in time: {error}", stage=stage)


def _refusal(error: Refused) -> str:
    """403 is both: no right to do it, and an admission that says no with a sentence of its own."""
    if error.quota:
        return "quota_exhausted"
    if error.status in _FORBIDDEN and not _by_admission(error):
        return "access_denied"
    return "manifest_refused"


def _by_admission(error: Refused) -> bool:
    return any(
        word in error.message for word in ("admission", "violates PodSecurity", "LimitRange", "maximum", "minimum")
    )
