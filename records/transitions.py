"""What may happen to a record: one table of legal moves, and ``apply``, which is pure and refuses the rest.

An event that says what the record already says changes nothing and is legal: a writer whose answer was lost repeats it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from records.canonical import artifact_problem
from records.errors import IllegalTransition
from records.model import Evidence, Lease, Phase, PodRef, Record, Result, Stop, TimelineEntry


@dataclass(frozen=True)
class LeaseTaken:
    """Take over an expired lease. ``now`` is the API server's clock; the epoch rises by one."""

    holder: str
    expires_at: datetime
    now: datetime


@dataclass(frozen=True)
class LeaseRenewed:
    """Keep our lease. It never gets shorter."""

    epoch: int
    expires_at: datetime


@dataclass(frozen=True)
class PodNamed:
    """The run's pod was created. There is one pod a run, for ever."""

    epoch: int
    pod: PodRef


@dataclass(frozen=True)
class EvidenceNoted:
    """More evidence; see :meth:`Evidence.merged`."""

    evidence: Evidence


@dataclass(frozen=True)
class ReleaseBegun:
    """The fencing point: after this write, and only after it, the marker may be sent."""

    epoch: int
    pod: PodRef
    evidence: Evidence
    at: datetime


@dataclass(frozen=True)
class WorkerStarted:
    """The worker was seen started. Any observer may say so."""

    at: datetime
    started_at: datetime
    deadline_at: datetime
    collect_until: datetime
    image_ids: Mapping[str, str]


@dataclass(frozen=True)
class Ended:
    """The run's outcome. Any observer may say so; a launcher failing its launch adds its ``epoch`` and is fenced."""

    phase: Phase
    result: Result
    at: datetime
    evidence: Evidence | None = None
    epoch: int | None = None


@dataclass(frozen=True)
class StopRequested:
    """The intent to stop. The first one stands."""

    at: datetime
    reason: str | None = None


@dataclass(frozen=True)
class ResultFilled:
    """What collect found. Exit code and reason stay what the terminal write said."""

    result: Result


@dataclass(frozen=True)
class Removed:
    """Only evidence is left."""

    at: datetime


Event = (
    LeaseTaken
    | LeaseRenewed
    | PodNamed
    | EvidenceNoted
    | ReleaseBegun
    | WorkerStarted
    | Ended
    | StopRequested
    | ResultFilled
    | Removed
)

_LAUNCHING = frozenset({Phase.PROVISIONING, Phase.RELEASING})
_LIVE = _LAUNCHING | {Phase.ACTIVE}
_OUTCOMES = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.LOST})

LEGAL: Mapping[type, frozenset[Phase]] = MappingProxyType(
    {
        LeaseTaken: _LAUNCHING,
        LeaseRenewed: _LAUNCHING,
        PodNamed: _LAUNCHING,
        ReleaseBegun: _LAUNCHING,
        EvidenceNoted: _LIVE,
        WorkerStarted: frozenset({Phase.RELEASING, Phase.ACTIVE}),
        Ended: _LIVE | _OUTCOMES,
        StopRequested: _LIVE,
        ResultFilled: _OUTCOMES,
        Removed: _OUTCOMES | {Phase.REMOVED},
    }
)
"""Event → the phases in which it may happen. Within a phase the event's own rule below decides."""

REACHABLE: Mapping[Phase, frozenset[Phase]] = MappingProxyType(
    {
        Phase.PROVISIONING: frozenset({Phase.RELEASING, Phase.FAILED, Phase.STOPPED, Phase.LOST}),
        Phase.RELEASING: frozenset({Phase.ACTIVE}) | _OUTCOMES,
        Phase.ACTIVE: _OUTCOMES,
        **dict.fromkeys(_OUTCOMES, frozenset({Phase.REMOVED})),
        Phase.REMOVED: frozenset(),
    }
)
"""Phase → the phases that may follow it. Nothing succeeds that was never released."""


def apply(record: Record, event: Event) -> Record:
    """Return the record after ``event``, or the very same record when it says nothing new. Raises IllegalTransition."""
    if record.phase not in LEGAL[type(event)]:
        raise _refused(record, event, "not in this phase")
    after = _RULES[type(event)](record, event)
    if after.phase is not record.phase and after.phase not in REACHABLE[record.phase]:
        raise _refused(record, event, f"{after.phase} cannot follow")
    return record if after == record else after


def _lease_taken(record: Record, event: LeaseTaken) -> Record:
    lease = record.lease
    _require_no_stop(record, event)
    if lease is None:
        return record.evolve(lease=Lease(holder=event.holder, epoch=1, expires_at=event.expires_at))
    if lease.holder == event.holder and lease.expires_at > event.now:
        return record
    if lease.expires_at > event.now:
        raise _refused(record, event, "the lease is held")
    return record.evolve(lease=Lease(holder=event.holder, epoch=lease.epoch + 1, expires_at=event.expires_at))


def _lease_renewed(record: Record, event: LeaseRenewed) -> Record:
    lease = _require_epoch(record, event, event.epoch)
    renewed = lease.evolve(expires_at=event.expires_at)
    return record.evolve(lease=renewed) if renewed.expires_at > lease.expires_at else record


def _pod_named(record: Record, event: PodNamed) -> Record:
    _require_epoch(record, event, event.epoch)
    _require_same_pod(record, event, event.pod)
    if record.pod is None and record.phase is not Phase.PROVISIONING:
        raise _refused(record, event, "released without a pod")
    return record.evolve(pod=event.pod)


def _evidence_noted(record: Record, event: EvidenceNoted) -> Record:
    return record.evolve(evidence=record.evidence.merged(event.evidence))


def _release_begun(record: Record, event: ReleaseBegun) -> Record:
    _require_epoch(record, event, event.epoch)
    _require_no_stop(record, event)
    _require_same_pod(record, event, event.pod)
    known = record.evolve(pod=event.pod, evidence=record.evidence.merged(event.evidence))
    return _enter(known, Phase.RELEASING, event.at)


def _worker_started(record: Record, event: WorkerStarted) -> Record:
    """The first to see it fixes the times, so that all observers reckon with the same deadline."""
    if record.phase is Phase.ACTIVE:
        return record
    known = record.evolve(
        started_at=event.started_at,
        deadline_at=event.deadline_at,
        collect_until=event.collect_until,
        evidence=record.evidence.merged(Evidence(image_ids=dict(event.image_ids))),
    )
    return _enter(known, Phase.ACTIVE, event.at)


def _ended(record: Record, event: Ended) -> Record:
    if event.phase not in _OUTCOMES:
        raise _refused(record, event, f"{event.phase} is no outcome")
    if record.phase.terminal:
        return _same_outcome(record, event)
    if event.epoch is not None:
        _require_epoch(record, event, event.epoch)
    evidence = record.evidence.merged(event.evidence) if event.evidence else record.evidence
    return _enter(record.evolve(result=event.result, evidence=evidence), event.phase, event.at)


def _same_outcome(record: Record, event: Ended) -> Record:
    """Terminal is terminal: the outcome may be said again, and is never another."""
    result = record.result
    if result is None or (record.phase, result.exit_code, result.reason) != (
        event.phase,
        event.result.exit_code,
        event.result.reason,
    ):
        raise _refused(record, event, "it has ended already")
    return record


def _stop_requested(record: Record, event: StopRequested) -> Record:
    return record if record.stop else record.evolve(stop=Stop(requested_at=event.at, reason=event.reason))


def _result_filled(record: Record, event: ResultFilled) -> Record:
    known, found = record.result, event.result
    if known is None or (known.exit_code, known.reason, known.retriable) != (
        found.exit_code,
        found.reason,
        found.retriable,
    ):
        raise _refused(record, event, "it is another outcome")
    problem = artifact_problem(found.result_artifact) if found.result_artifact is not None else None
    if problem:
        raise _refused(record, event, f"the artifact is {problem}")
    if known.artifacts != "unknown" and known != found:
        raise _refused(record, event, "it was filled in already")
    return record.evolve(result=found)


def _removed(record: Record, event: Removed) -> Record:
    return _enter(record.evolve(result=None, lease=None), Phase.REMOVED, event.at)


_RULES: Mapping[type, Callable[..., Record]] = MappingProxyType(
    {
        LeaseTaken: _lease_taken,
        LeaseRenewed: _lease_renewed,
        PodNamed: _pod_named,
        EvidenceNoted: _evidence_noted,
        ReleaseBegun: _release_begun,
        WorkerStarted: _worker_started,
        Ended: _ended,
        StopRequested: _stop_requested,
        ResultFilled: _result_filled,
        Removed: _removed,
    }
)


def _enter(record: Record, phase: Phase, at: datetime) -> Record:
    if record.phase is phase:
        return record
    return record.evolve(phase=phase, timeline=(*record.timeline, TimelineEntry(phase=phase, at=at)))


def _require_epoch(record: Record, event: Event, epoch: int) -> Lease:
    if record.lease is None or record.lease.epoch != epoch:
        raise _refused(record, event, "the lease is another's")
    return record.lease


def _require_no_stop(record: Record, event: Event) -> None:
    if record.stop:
        raise _refused(record, event, "a stop was requested")


def _require_same_pod(record: Record, event: Event, pod: PodRef) -> None:
    if record.pod is not None and record.pod != pod:
        raise _refused(record, event, "the run has another pod")


def _refused(record: Record, event: Event, why: str) -> IllegalTransition:
    return IllegalTransition(record.phase, type(event).__name__, why)
