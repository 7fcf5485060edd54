"""A run whose worker was seen started: whether it has ended, and how. Pure.

Nothing is decided before the prover has been asked, since its verdict comes before any exit code.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from launcher.cluster.views import Terminated
from launcher.decide.disruption import DELETED, Disruption, ended_before, ended_by_pod_deadline
from launcher.decide.gate_verdict import gate_evidence
from launcher.decide.images import changed_spec, other_image
from launcher.decide.outcome import (
    NEVER_STARTED,
    Outcome,
    failed,
    isolation_failed,
    killed_by_probe,
    lost,
    probe_killed_worker,
    ran_too_long,
    stopped,
    succeeded,
    timed_out,
    worker_ended,
)
from launcher.decide.prover_report import ProverReport
from launcher.decide.sight import Finish, Look, NeedsEvents, NeedsProver, Noted, Progress, Unchanged
from records.model import Evidence, Phase, Record

UNDECIDED_FOR = timedelta(seconds=15)
"""A prover that saw one open round looks again within a quarter of a second; after so long it says nothing any more."""

LAST_STATUS = timedelta(seconds=5)
"""What a kubelet may take to publish how containers ended."""


def active(look: Look) -> Progress:
    """Decide for the phase ``active``."""
    # Nothing ends the run: a worker that is not shown any more may be shown again, what the record says stays.
    if not _ending(look):
        return Unchanged()
    if look.prover is None:
        return NeedsProver()
    for rung in _RUNGS:
        if (step := rung(look, look.prover)) is not None:
            return step
    return Unchanged()


def _ending(look: Look) -> bool:
    return (
        look.end is not None
        or look.record.stop is not None
        or look.disruption is not None
        or look.over
        or _overdue(look)
        or _keeper_dead(look)
        or _tampered(look) is not None
    )


def _finish(look: Look, outcome: Outcome, report: ProverReport) -> Finish:
    evidence = report.evidence(look.record.evidence.rounds, _finished_at(look)).merged(gate_evidence(look.pod))
    # An ended worker's pod is kept: its files, or at least its log, can still be collected.
    return Finish(outcome.phase, outcome.result, evidence, delete_pod=look.end is None)


def _isolation(look: Look, report: ProverReport) -> Progress | None:
    """The prover's latched verdict concerns the worker's lifetime, whatever its exit code says."""
    if not report.lost_while_alive(_finished_at(look)):
        return None
    return _finish(look, isolation_failed(report, look.end, look.record.timeout_seconds), report)


def _undecided(look: Look, report: ProverReport) -> Progress | None:
    """One open round was seen as the worker ended: the next one tells whether the isolation was lost."""
    finished_at = _finished_at(look)
    if finished_at is None or not report.undecided:
        return None
    if not look.over and look.now <= finished_at + UNDECIDED_FOR:
        return Unchanged("the worker has ended; the prover is looking once more whether it was isolated")
    if not _completed(look):
        return None
    why = "the prover's last round found the pod open, and it could not look again"
    return _finish(look, failed("isolation_unproven", why), report)


def _stop(look: Look, report: ProverReport) -> Progress | None:
    """Somebody wanted it ended, and a look before that had not found it ended."""
    stop = look.record.stop
    return None if stop is None else _finish(look, stopped(stop.reason), report)


def _other_pod(look: Look, report: ProverReport) -> Progress | None:
    """What runs is not what was attested."""
    found = _tampered(look)
    return None if found is None else _finish(look, failed(*found), report)


def _disrupted(look: Look, report: ProverReport) -> Progress | None:
    """Something else ended the pod, and with it the worker; one that ended before that keeps its own outcome."""
    why = look.disruption
    if why is None or (look.end is not None and ended_before(look.end, why)):
        return None
    # Announced only, it may still be called off; and a kubelet is about to tell how the worker really ended.
    if look.running and not look.over and (look.pod.deletion_at is None or look.now < _last_word(look)):
        return None if look.pod.deletion_at is None else _being_ended(look.record, why)
    return _finish(look, lost(why.reason, why.message), report)


def _being_ended(record: Record, why: Disruption) -> Progress:
    """Note why while the pod is there to say it. That someone deleted it is what is believed of a pod that is gone."""
    message = f"the pod is being ended: {why.message}"
    if why.reason in (DELETED, record.evidence.disruption):
        return Unchanged(message)
    return Noted(Evidence(disruption=why.reason), message)


def _late(look: Look, report: ProverReport) -> Progress | None:
    """When it ended decides, not when it is looked at."""
    end = look.end
    if end is None:
        return None
    late = ran_too_long(end, look.record.timeout_seconds) or ended_by_pod_deadline(look.pod, end)
    return _finish(look, timed_out(look.record.timeout_seconds), report) if late else None


def _probe(look: Look, report: ProverReport) -> Progress | None:
    """The kubelet killed it for its liveness probe: the container's status does not say so, Events do.

    Asked of a worker that ended with 0 as well, since one that heeds SIGTERM so would pass for a success.
    """
    end = look.end
    if end is None or end.reason in ("OOMKilled", *NEVER_STARTED):
        return None
    if look.events is None:
        return NeedsEvents()
    if not probe_killed_worker(look.events, end.finished_at):
        return None
    after, timeout = _since_release(look.record, end), look.record.timeout_seconds
    return _finish(look, killed_by_probe(report, look.events, end, after, timeout), report)


def _success(look: Look, report: ProverReport) -> Progress | None:
    """The worker ended on its own, with 0, in time; what became of the pod afterwards changes nothing."""
    return _finish(look, succeeded(), report) if _completed(look) else None


def _ended(look: Look, report: ProverReport) -> Progress | None:
    """The worker is to blame."""
    return None if look.end is None else _finish(look, worker_ended(look.end), report)


def _over(look: Look, report: ProverReport) -> Progress | None:
    """The pod is over, and nobody can say how the worker ended."""
    if not look.over:
        return None
    if look.pod.reason == "DeadlineExceeded":
        return _finish(look, timed_out(look.record.timeout_seconds), report)
    return _finish(look, lost("node_lost", "the pod is over and its worker's end was not reported"), report)


def _timeout(look: Look, report: ProverReport) -> Progress | None:
    """It runs on beyond its deadline."""
    return _finish(look, timed_out(look.record.timeout_seconds), report) if _overdue(look) else None


def _keeper(look: Look, report: ProverReport) -> Progress | None:
    """What the worker does now could not be brought back any more.

    A keeper heeds SIGTERM sooner than a worker may: while the whole pod is being ended, that is no loss of its own.
    """
    keeper = look.pod.keeper.terminated if look.pod.keeper else None
    if not _keeper_dead(look) or keeper is None:
        return None
    grace = timedelta(seconds=look.pod.grace_seconds) + LAST_STATUS
    if keeper.finished_at is not None and look.now < keeper.finished_at + grace:
        return Unchanged("the keeper has ended while the worker runs")
    return _finish(look, failed("keeper_lost", "the keeper ended while the worker ran", retriable=True), report)


_RUNGS: tuple[Callable[[Look, ProverReport], Progress | None], ...] = (
    _isolation,
    _undecided,
    _stop,
    _other_pod,
    _disrupted,
    _late,
    _probe,
    _success,
    _ended,
    _over,
    _timeout,
    _keeper,
)
"""First match wins."""


def _finished_at(look: Look) -> datetime | None:
    return look.end.finished_at if look.end is not None else None


def _completed(look: Look) -> bool:
    return look.end is not None and look.end.exit_code == 0 and look.end.reason == "Completed"


def _overdue(look: Look) -> bool:
    deadline = look.record.deadline_at
    return look.end is None and deadline is not None and look.now >= deadline


def _keeper_dead(look: Look) -> bool:
    keeper = look.pod.keeper
    return look.running and keeper is not None and keeper.terminated is not None


def _tampered(look: Look) -> tuple[str, str] | None:
    """Code and sentence when another image runs than was pinned, or another spec than was attested."""
    if (other := other_image(look.pod)) is not None:
        return "image_mismatch", other
    changed = changed_spec(look.pod)
    return None if changed is None else ("attestation_failed", changed)


def _last_word(look: Look) -> datetime:
    """The pod's last moment by the server, and what its kubelet may take to tell about it."""
    last = look.pod.deletion_at
    return look.now if last is None else last + LAST_STATUS


def _since_release(record: Record, end: Terminated) -> float:
    released_at = record.entered(Phase.RELEASING)
    if released_at is None or end.finished_at is None:
        return 0.0
    return (end.finished_at - released_at).total_seconds()
