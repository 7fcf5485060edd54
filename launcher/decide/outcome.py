"""How runs end: from what containers, pod and prover say to a phase and a result. Pure.

Exit codes of results: 0 succeeded, 124 timed out, 137 out of memory, 143 stopped, 1 lost, otherwise the worker's own;
125 when a run failed whose worker has no code of its own, or one that would read as success.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from launcher.cluster.views import EventView, PodView, Terminated
from launcher.decide.prover_report import OPENNESS, ProverReport
from launcher.errors import CODES
from records.model import Phase, Result

TIMED_OUT, OUT_OF_MEMORY, STOPPED, LOST, FAILED = 124, 137, 143, 1, 125

TIMEOUT_GRACE = timedelta(seconds=5)
"""From an observer's delete at the deadline to the worker's last breath; takes up node times' whole seconds, too."""

UNKNOWN_END = "ContainerStatusUnknown"
NEVER_STARTED = frozenset({"StartError", "ContainerCannotRun"})


@dataclass(frozen=True)
class Outcome:
    """The last thing to be said about a run."""

    phase: Phase
    result: Result


@dataclass(frozen=True)
class Disruption:
    """Something other than run and launcher ended the pod. ``began_at`` is None when that cannot be told."""

    reason: str
    message: str
    began_at: datetime | None = None


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


# --- the worker's own end -------------------------------------------------------------------------------------------


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


# --- isolation ------------------------------------------------------------------------------------------------------


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


def probe_killed_worker(events: Iterable[EventView]) -> bool:
    """Whether the kubelet said that it killed the worker for its liveness probe."""
    return any(
        event.container == "worker" and event.reason == "Killing" and "failed liveness probe" in event.message
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


# --- disruptions ----------------------------------------------------------------------------------------------------

_POD_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "Evicted": "evicted",
        "Preempting": "preempted",
        "Preempted": "preempted",
        "NodeShutdown": "node_shutdown",
        "Shutdown": "node_shutdown",
        "Terminated": "node_shutdown",  # what kubelets since 1.22 say for a graceful node shutdown
        "NodeLost": "node_lost",
    }
)

_CONDITION_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "PreemptionByScheduler": "preempted",
        "DeletionByTaintManager": "node_lost",
        "DeletionByPodGC": "node_lost",
        "EvictionByEvictionAPI": "evicted",
        "TerminationByKubelet": "evicted",
    }
)

_EVENT_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "Evicted": "evicted",
        "Preempted": "preempted",
        "Preempting": "preempted",
        "NodeShutdown": "node_shutdown",
        "TaintManagerEviction": "node_lost",
        "NodeNotReady": "node_lost",
    }
)


def disruption_of(pod: PodView) -> Disruption | None:
    """What disrupted the pod, most telling sign first. Only for runs without a stop: else the deletion is ours."""
    # The kubelet says why it ended the pod.
    if pod.reason is not None and pod.reason in _POD_REASONS:
        return Disruption(_POD_REASONS[pod.reason], pod.message or pod.reason, _began(pod))
    # The control plane says why it will.
    target = pod.condition("DisruptionTarget")
    if target is not None and target.holds:
        reason = _CONDITION_REASONS.get(target.reason or "", "evicted")
        return Disruption(reason, target.message or target.reason or "no reason given", _began(pod))
    if pod.deletion_at is not None:
        return Disruption("pod_deleted", "the pod was deleted by someone else", pod.deletion_began_at)
    if unknown_end(pod):
        return Disruption("node_lost", "the node lost the pod's containers")
    # Refused by its node, or failed by a controller: no kubelet ever published a container.
    if pod.phase == "Failed" and pod.containers is None:
        return Disruption("node_lost", pod.message or pod.reason or "the pod failed before any container was reported")
    return None


def unknown_end(pod: PodView) -> bool:
    """Whether a container's end was invented by the kubelet, since the container could not be found any more."""
    ends = [each for c in pod.containers or () for each in (c.terminated, c.last) if each is not None]
    return any(end.reason == UNKNOWN_END for end in ends)


def disruption_by(events: Iterable[EventView], missing: str) -> Disruption:
    """What Events say about a pod that is gone; ``missing`` is the message when they say nothing."""
    for event in events:
        if event.reason in _EVENT_REASONS:
            return Disruption(_EVENT_REASONS[event.reason], event.message or event.reason, event.first_at)
    return Disruption("pod_deleted", missing)


def ended_before(end: Terminated, disruption: Disruption | None) -> bool:
    """Whether the worker ended on its own, before the disruption began. A tie is a disruption, and so is doubt."""
    if disruption is None:
        return True
    if disruption.began_at is None or end.finished_at is None:
        return False
    return end.finished_at < disruption.began_at


def _began(pod: PodView) -> datetime | None:
    """The earliest moment at which the disruption can have begun; times of nodes and of the server are taken as one here.

    A kubelet's own eviction carries no time (and its deletion may come much later, or never): the keeper was ended by it,
    at most its grace period after the begin.
    """
    target = pod.condition("DisruptionTarget")
    keeper = pod.keeper.terminated if pod.keeper else None
    grace = timedelta(seconds=pod.grace_seconds)
    signs = [
        pod.deletion_began_at,
        target.changed_at if target is not None and target.holds else None,
        keeper.finished_at - grace if keeper is not None and keeper.finished_at is not None else None,
    ]
    return min((sign for sign in signs if sign is not None), default=None)


def ended_by_pod_deadline(pod: PodView, end: Terminated) -> bool:
    """Whether the worker was still there when the pod's own backstop ended it; a tie is."""
    if pod.reason != "DeadlineExceeded":
        return False
    if pod.deadline_at is None or end.finished_at is None:
        return True
    return end.finished_at >= pod.deadline_at


# --- the gate -------------------------------------------------------------------------------------------------------

NO_PROOF = 40
"""The gate's exit code whose message names the proof's own code."""

_GATE_EXITS: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        NO_PROOF: ("probe_unusable", "the marker came and the proof did not stand"),
        41: ("gate_restarted", "the prover was away or had restarted when the marker came"),
        42: ("launch_superseded", "the marker was for another pod, epoch or seed"),
        43: ("sandbox_lost", "the gate was ended by a signal"),
        44: ("launch_abandoned", "no marker came within the provision bound"),
        45: ("seed_failed", "the seed was missing or damaged"),
    }
)
"""Exit code → code and sentence."""


def gate_failed(pod: PodView) -> Outcome | None:
    """Say how a gate that stayed closed ends the run; None while it waits, and when it opened. Nothing untrusted ran."""
    end = pod.gate.terminated if pod.gate else None
    if end is None or end.exit_code == 0:
        return None
    if end.exit_code is None or end.exit_code not in _GATE_EXITS:
        return _gate_broken(pod, end)
    said = gate_message(end)
    code, sentence = _GATE_EXITS[end.exit_code]
    if end.exit_code == NO_PROOF:
        code = said["code"] if said.get("code") in CODES else code
    message = f"{sentence}: {said['message']}" if said.get("message") else sentence
    return lost(code, message) if code == "sandbox_lost" else failed(code, message)


def _gate_broken(pod: PodView, end: Terminated) -> Outcome:
    if pod.reason == "DeadlineExceeded":
        return failed("pod_start_timeout", "the pod's own deadline came before the gate opened")
    return failed("pod_start_failed", f"the gate ended with {end.exit_code} ({end.reason})")


def gate_message(end: Terminated) -> dict[str, str]:
    """The gate's ``code`` and ``message``, as far as its termination message holds them; {} when kubelets cut it."""
    try:
        said = json.loads(end.message or "")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    return {key: value for key in ("code", "message") if isinstance(value := said.get(key), str) and value}
