"""How runs end: from what containers, pod and prover say to a phase and a result. Pure.

Exit codes of results: 0 succeeded, 124 timed out, 137 out of memory, 143 stopped, 1 lost, otherwise the worker's own;
125 when a run failed whose worker has no code of its own, or one that would read as success.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from launcher.cluster.views import EventView, Terminated
from launcher.decide.prover_report import OPENNESS, ProverReport
from records.model import Phase, Result

TIMED_OUT, OUT_OF_MEMORY, STOPPED, LOST, FAILED = 124, 137, 143, 1, 125

TIMEOUT_GRACE = timedelta(seconds=5)
"""From an observer's delete at the deadline to the worker's last breath; takes up node times' whole seconds, too."""

NEVER_STARTED = frozenset({"StartError", "ContainerCannotRun"})


@dataclass(frozen=True)
class Outcome:
    """The last thing to be said about a run."""

    phase: Phase
    result: Result


def succeeded() -> Outcome:
    """The worker ended with 0, in time and isolated."""
    return Outcome(Phase.SUCCEEDED, Result(exit_code=0, reason="completed"))


def failed(reason: str, message: str, *, exit_code: int = FAILED, retriable: bool = False) -> Outcome:
    """The run is to blame, or its isolation, or its launch."""
    return Outcome(Phase.FAILED, Result(exit_code=exit_code, reason=reason, message=message, retriable=retriable))


def lost(reason: str, message: str) -> Outcome:
    """The infrastructure is to blame; the same job may succeed elsewhere."""
    return Outcome(Phase.LOST, Result(exit_code=LOST, reason=reason, message=message, retriable=True))


def stopped(reason: str | None) -> Outcome:
    """Somebody asked for it."""
    return Outcome(Phase.STOPPED, Result(exit_code=STOPPED, reason="stopped", message=reason))


def timed_out(timeout_seconds: int) -> Outcome:
    """The worker ran longer than it may."""
    return failed("timed_out", f"the worker ran longer than {timeout_seconds} s", exit_code=TIMED_OUT)


def worker_ended(end: Terminated) -> Outcome:
    """Say how a worker that nobody else ended has ended (its success is decided before this is asked)."""
    # A killed child leaves exit code 0 on cgroup v1; the reason tells.
    if end.reason == "OOMKilled":
        return failed("oom_killed", "the worker, or a child of it, exceeded its memory", exit_code=OUT_OF_MEMORY)
    # Kubelets say 1970 for a start that never was.
    if end.reason in NEVER_STARTED:
        return failed("worker_start_failed", end.message or "no reason given", exit_code=own_code(end))
    return failed("worker_failed", f"the worker ended with {end.exit_code}", exit_code=own_code(end))


def own_code(end: Terminated | None) -> int:
    """The worker's exit code for a run that failed: 125 in place of none, and of a 0 that would read as success."""
    return (end.exit_code if end is not None else None) or FAILED


def ran_too_long(end: Terminated, timeout_seconds: int) -> bool:
    """Node times with node times. Without them the record's own deadline has to do."""
    if end.started_at is None or end.finished_at is None:
        return False
    return end.finished_at - end.started_at > timedelta(seconds=timeout_seconds) + TIMEOUT_GRACE


def isolation_failed(report: ProverReport, end: Terminated | None, timeout_seconds: int) -> Outcome:
    """Say what the prover's latched verdict makes of the run, whatever the worker's exit code is."""
    detail = f": {report.detail}" if report.detail else ""
    if report.verdict in OPENNESS:
        message = f"the prover saw the pod {_seen(report.verdict)} while the worker ran{detail}"
        return failed("isolation_lost", message, exit_code=own_code(end))
    if report.verdict == "timeout":
        return timed_out(timeout_seconds)
    message = f"the prover could not measure for too long while the worker ran ({report.verdict}){detail}"
    return failed("isolation_unproven", message, exit_code=own_code(end))


def killed_by_probe(
    report: ProverReport, events: Iterable[EventView], end: Terminated | None, released_for: float, timeout_seconds: int
) -> Outcome:
    """Say why a liveness probe killed the worker although the log shows no verdict from before its end.

    ``released_for``: seconds from the release to the end, which tells a 503 of the timeout from one of lost isolation.
    """
    # The proof stood all the time: it was the probe that could not get through.
    if report.standing:
        return failed(
            "probe_starved", "the worker's liveness probe failed while the proof stood", exit_code=own_code(end)
        )
    # 503 is only said after a verdict. Which one is not known any more: the worst it can have been.
    if answered_503(events):
        if released_for >= timeout_seconds:
            return timed_out(timeout_seconds)
        return failed(
            "isolation_lost",
            "the prover's health check had turned 503 and killed the worker; its log cannot be read any more",
            exit_code=own_code(end),
        )
    return failed(
        "isolation_unproven", "the worker's liveness probe failed and the proof did not stand", exit_code=own_code(end)
    )


def probe_killed_worker(events: Iterable[EventView], finished_at: datetime | None = None) -> bool:
    """Whether the kubelet said that it killed the worker for its liveness probe, no later than the worker's end.

    A worker that had ended in an earlier second was not what the kubelet killed.
    """
    return any(
        event.container == "worker"
        and event.reason == "Killing"
        and "failed liveness probe" in event.message
        and (finished_at is None or event.first_at is None or event.first_at <= finished_at)
        for event in events
    )


def answered_503(events: Iterable[EventView]) -> bool:
    """Whether a liveness probe of the worker was answered with 503, which only a latched verdict makes."""
    return any(
        event.container == "worker" and event.reason == "Unhealthy" and "statuscode: 503" in event.message
        for event in events
    )


def _seen(verdict: str | None) -> str:
    return {"leak": "reach a target that must be closed", "intercepted": "intercepted"}.get(verdict or "", "open")
