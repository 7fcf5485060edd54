"""What is to be written about a run now, from its record, its pod and, where an end is near, its prover. Pure.

``progress`` answers with one value. ``NeedsProver`` and ``NeedsEvents`` ask for facts that cost a request more; whoever
gathers comes back with them (or with what says that they cannot be had) and gets an answer that asks for less.
The ladder is read from the top, first match wins.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from launcher.cluster.views import ContainerView, EventView, PodView, Terminated
from launcher.decide import outcome as ends
from launcher.decide.outcome import Disruption, Outcome
from launcher.decide.prover_report import ProverReport
from launcher.decide.recovery import abandoned, abandoned_result, lease_expired
from launcher.decide.waiting import course, is_stuck, waiting
from records.model import Evidence, Phase, Record, Result

UNDECIDED_FOR = timedelta(seconds=15)
"""A prover that saw one open round looks again within a quarter of a second; after so long it says nothing any more."""

LAST_STATUS = timedelta(seconds=5)
"""How long after a deleted pod's last moment its kubelet may take to tell how the worker ended."""

SANDBOX_MADE_AGAIN = timedelta(seconds=30)
"""A prover that restarts is back in 10 s at most (the kubelet's back-off); one that stays away lost its sandbox."""


@dataclass(frozen=True)
class Unchanged:
    """Nothing to write. ``message`` says what the run waits for, when it waits."""

    message: str | None = None


@dataclass(frozen=True)
class Started:
    """The worker was seen started; look again, it may have ended already."""

    started_at: datetime
    deadline_at: datetime
    collect_until: datetime
    image_ids: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Finish:
    """The run's outcome. ``delete_pod``: something of it may still run; delete it, after the outcome is written."""

    phase: Phase
    result: Result
    evidence: Evidence | None
    delete_pod: bool


@dataclass(frozen=True)
class NeedsProver:
    """An end is near: first the prover's own word is wanted."""


@dataclass(frozen=True)
class NeedsEvents:
    """The pod's Events may tell what its status does not."""


Progress = Unchanged | Started | Finish | NeedsProver | NeedsEvents


@dataclass(frozen=True)
class Windows:
    """Times that are settings: how long after its deadline a run's files are kept, and when a launch is abandoned."""

    collect: timedelta = timedelta(seconds=3600)
    abandoned_after: timedelta = timedelta(seconds=60)


@dataclass(frozen=True)
class _Look:
    record: Record
    pod: PodView
    now: datetime
    prover: ProverReport | None
    events: tuple[EventView, ...] | None
    windows: Windows

    @property
    def worker(self) -> ContainerView | None:
        return self.pod.worker

    @property
    def end(self) -> Terminated | None:
        """How the worker ended, when its own end was seen: an invented one is none."""
        end = self.worker.terminated if self.worker else None
        return None if end is not None and end.reason == ends.UNKNOWN_END else end

    @property
    def running(self) -> bool:
        return self.worker is not None and self.worker.running is not None

    @property
    def disruption(self) -> Disruption | None:
        return ends.disruption_of(self.pod)


def progress(
    record: Record,
    pod: PodView | None,
    now: datetime,
    *,
    prover: ProverReport | None = None,
    events: tuple[EventView, ...] | None = None,
    windows: Windows = Windows(),  # a frozen value
) -> Progress:
    """Decide. ``now`` is the API server's clock; ``prover`` and ``events`` are None until they were asked for.

    A pod of another uid than the record's counts as none. Before the record names a pod, the caller vouches for it.
    """
    # Terminal is terminal.
    if record.phase.terminal:
        return Unchanged()
    ours = pod if pod is not None and record.pod is not None and pod.uid == record.pod.uid else None
    # Until the release the run is in its launcher's hands, as long as there is one.
    if record.phase is Phase.PROVISIONING:
        return _provisioning(record, pod if record.pod is None else ours, now, events, windows)
    if ours is None:
        return _without_pod(record, events)
    look = _Look(record, ours, now, prover, events, windows)
    # The first to see the worker started fixes the times that all observers reckon with.
    if record.phase is Phase.RELEASING and (begun := _started(look)) is not None:
        return begun
    return _releasing(look) if record.phase is Phase.RELEASING else _active(look)


# --- before the release ---------------------------------------------------------------------------------------------


def _provisioning(
    record: Record, pod: PodView | None, now: datetime, events: tuple[EventView, ...] | None, windows: Windows
) -> Progress:
    # Somebody wants it ended, and nothing untrusted has run.
    if record.stop is not None:
        return _never_ran(ends.stopped(record.stop.reason))
    # Only Events know why nothing moves.
    if pod is not None and events is None and is_stuck(pod, now):
        return NeedsEvents()
    # The holder of the lease sees what we see, and knows more.
    if not lease_expired(record, now):
        return Unchanged(_waits_for(pod, events))
    # Nobody holds it, and the gate gave up: its reason is better than "abandoned".
    if pod is not None and (closed := ends.gate_failed(pod)) is not None:
        return _never_ran(closed, _gate_evidence(pod))
    if abandoned(record, now, after=windows.abandoned_after):
        return _abandoned(_waits_for(pod, events))
    return Unchanged(f"the launching replica is away; {_waits_for(pod, events)}")


def _waits_for(pod: PodView | None, events: tuple[EventView, ...] | None) -> str:
    if pod is None:
        return "the pod is not made yet"
    held_up = waiting(pod, events)
    return course(pod) if held_up is None else held_up.message


def _abandoned(why: str) -> Finish:
    return Finish(Phase.FAILED, abandoned_result(why), None, delete_pod=True)


def _never_ran(outcome: Outcome, evidence: Evidence | None = None) -> Finish:
    """An outcome without a worker: there is nothing to collect, and nothing to say about its isolation."""
    result = outcome.result.model_copy(update={"artifacts": "absent"})
    return Finish(outcome.phase, result, evidence, delete_pod=True)


def _gate_evidence(pod: PodView) -> Evidence | None:
    end = pod.gate.terminated if pod.gate else None
    if end is None or end.exit_code is None:
        return None
    return Evidence(gate_exit=end.exit_code, gate_message=ends.gate_message(end).get("message"))


# --- released, and the worker not seen started ----------------------------------------------------------------------


def _started(look: _Look) -> Started | None:
    state = look.worker.state if look.worker else None
    started_at = None if state is None else getattr(state, "started_at", None)
    if not isinstance(started_at, datetime):
        return None
    # The worker cannot have started before its release, nor later than now: a node's clock that is off by more than
    # that would shorten or lengthen the run.
    released_at = look.record.entered(Phase.RELEASING) or started_at
    begun = min(max(started_at, released_at), max(look.now, released_at))
    deadline = begun + timedelta(seconds=look.record.timeout_seconds)
    return Started(started_at, deadline, deadline + look.windows.collect, _image_ids(look.pod))


def _releasing(look: _Look) -> Progress:
    record, pod = look.record, look.pod
    # Somebody wants it ended, and the worker has not started.
    if record.stop is not None:
        return _never_ran(ends.stopped(record.stop.reason), _gate_evidence(pod))
    # The pod's end came from outside.
    if (why := look.disruption) is not None:
        return _never_ran(ends.lost(why.reason, why.message), _gate_evidence(pod))
    # The pod's own key was missing.
    if (closed := ends.gate_failed(pod)) is not None:
        return _never_ran(closed, _gate_evidence(pod))
    # The worker ended without having started: its command could not be run.
    if look.end is not None:
        return _never_ran(ends.worker_ended(look.end), _gate_evidence(pod))
    # A sandbox that dies right after the release leaves the pod pending for ever.
    if _sandbox_lost(look):
        return _never_ran(
            ends.lost("sandbox_lost", "the pod's sandbox died right after the release"), _gate_evidence(pod)
        )
    return _still_starting(look)


def _still_starting(look: _Look) -> Progress:
    record, pod = look.record, look.pod
    if look.events is None and is_stuck(pod, look.now):
        return NeedsEvents()
    held_up = waiting(pod, look.events)
    # Waiting cannot help.
    if held_up is not None and held_up.fatal:
        return _never_ran(ends.failed(held_up.code, held_up.message), _gate_evidence(pod))
    # The pod is over, and no worker ever was.
    if pod.phase in ("Failed", "Succeeded"):
        return _never_ran(_over_without_worker(pod), _gate_evidence(pod))
    # The marker never came: whoever was to send it is away.
    gate_waits = pod.gate is None or pod.gate.terminated is None
    if gate_waits and abandoned(record, look.now, after=look.windows.abandoned_after):
        return _abandoned(_waits_for(pod, look.events))
    # Waiting could have helped, and did not.
    if look.now >= record.provision_by and not gate_waits:
        code = held_up.code if held_up is not None else "pod_start_timeout"
        return _never_ran(ends.failed(code, _waits_for(pod, look.events)), _gate_evidence(pod))
    return Unchanged(_waits_for(pod, look.events))


def _over_without_worker(pod: PodView) -> Outcome:
    if pod.reason == "DeadlineExceeded":
        return ends.failed("pod_start_timeout", "the pod's own deadline came before the worker ran")
    return ends.lost("sandbox_lost", pod.message or "the pod ended before the worker ran")


def _sandbox_lost(look: _Look) -> bool:
    gate, prover = look.pod.gate, look.pod.prover
    opened = gate is not None and gate.terminated is not None and gate.terminated.exit_code == 0
    away = prover.terminated if prover is not None else None
    if not opened or away is None:
        return False
    sandbox = look.pod.condition("PodReadyToStartContainers")
    if sandbox is not None and sandbox.status == "False":
        return True
    return away.finished_at is not None and look.now > away.finished_at + SANDBOX_MADE_AGAIN


# --- the worker started ---------------------------------------------------------------------------------------------


def _active(look: _Look) -> Progress:
    # Nothing ends the run: a worker that is not shown any more may be shown again, what the record says stays.
    if not _ending(look):
        return Unchanged()
    if look.prover is None:
        return NeedsProver()
    for rung in _RUNGS:
        if (step := rung(look, look.prover)) is not None:
            return step
    return Unchanged()


def _ending(look: _Look) -> bool:
    return (
        look.end is not None
        or look.record.stop is not None
        or look.disruption is not None
        or look.pod.phase in ("Failed", "Succeeded")
        or _overdue(look)
        or _keeper_dead(look)
        or _other_image(look.pod) is not None
    )


def _finish(look: _Look, outcome: Outcome, report: ProverReport) -> Finish:
    finished_at = look.end.finished_at if look.end is not None else None
    evidence = report.evidence(look.record.evidence.rounds, finished_at)
    # An ended worker's pod is kept: its files, or at least its log, can still be collected.
    return Finish(outcome.phase, outcome.result, evidence, delete_pod=look.end is None)


def _isolation(look: _Look, report: ProverReport) -> Progress | None:
    """The prover's latched verdict concerns the worker's lifetime, whatever its exit code says."""
    if not report.lost_while_alive(look.end.finished_at if look.end is not None else None):
        return None
    return _finish(look, ends.isolation_failed(report, look.end, look.record.timeout_seconds), report)


def _undecided(look: _Look, report: ProverReport) -> Progress | None:
    """One open round was seen as the worker ended: the next one tells whether the isolation was lost."""
    finished_at = look.end.finished_at if look.end is not None else None
    if finished_at is None or not report.undecided or look.pod.phase in ("Failed", "Succeeded"):
        return None
    if look.now > finished_at + UNDECIDED_FOR:
        return None
    return Unchanged("the worker has ended; the prover is looking once more whether it was isolated")


def _stop(look: _Look, report: ProverReport) -> Progress | None:
    """Somebody wanted it ended, and a look before that had not found it ended."""
    stop = look.record.stop
    return None if stop is None else _finish(look, ends.stopped(stop.reason), report)


def _image(look: _Look, report: ProverReport) -> Progress | None:
    """A container runs another image than the pinned one."""
    other = _other_image(look.pod)
    return None if other is None else _finish(look, ends.failed("image_mismatch", other), report)


def _success(look: _Look, report: ProverReport) -> Progress | None:
    """The worker ended on its own, with 0, in time; what became of the pod afterwards changes nothing."""
    end = look.end
    if end is None or end.exit_code != 0 or end.reason != "Completed":
        return None
    if ends.ran_too_long(end, look.record.timeout_seconds) or ends.ended_by_pod_deadline(look.pod, end):
        return None
    return _finish(look, ends.succeeded(), report) if ends.ended_before(end, look.disruption) else None


def _disrupted(look: _Look, report: ProverReport) -> Progress | None:
    """Something else ended the pod, and with it the worker."""
    why = look.disruption
    if why is None or (look.end is not None and ends.ended_before(look.end, why)):
        return None
    # The worker may have ended before that, its kubelet is about to tell; the pod's last moment bounds the wait.
    last = look.pod.deletion_at
    if look.running and last is not None and look.now < last + LAST_STATUS:
        return Unchanged(f"the pod is being ended: {why.message}")
    return _finish(look, ends.lost(why.reason, why.message), report)


def _late(look: _Look, report: ProverReport) -> Progress | None:
    """When it ended decides, not when it is looked at."""
    end = look.end
    if end is None:
        return None
    late = ends.ran_too_long(end, look.record.timeout_seconds) or ends.ended_by_pod_deadline(look.pod, end)
    return _finish(look, ends.timed_out(look.record.timeout_seconds), report) if late else None


def _probe(look: _Look, report: ProverReport) -> Progress | None:
    """The kubelet killed it for its liveness probe: the container's status does not say so, Events do."""
    end = look.end
    if end is None or end.reason in ("OOMKilled", *ends.NEVER_STARTED):
        return None
    if look.events is None:
        return NeedsEvents()
    if not ends.probe_killed_worker(look.events):
        return None
    timeout = look.record.timeout_seconds
    return _finish(
        look, ends.killed_by_probe(report, look.events, end, _since_release(look.record, end), timeout), report
    )


def _ended(look: _Look, report: ProverReport) -> Progress | None:
    """The worker is to blame."""
    return None if look.end is None else _finish(look, ends.worker_ended(look.end), report)


def _vanished(look: _Look, report: ProverReport) -> Progress | None:
    """The pod is over, and nobody can say how the worker ended."""
    if look.pod.phase not in ("Failed", "Succeeded"):
        return None
    if look.pod.reason == "DeadlineExceeded":
        return _finish(look, ends.timed_out(look.record.timeout_seconds), report)
    return _finish(look, ends.lost("node_lost", "the pod is over and its worker's end was not reported"), report)


def _timeout(look: _Look, report: ProverReport) -> Progress | None:
    """It runs on beyond its deadline."""
    return _finish(look, ends.timed_out(look.record.timeout_seconds), report) if _overdue(look) else None


def _keeper(look: _Look, report: ProverReport) -> Progress | None:
    """What the worker does now could not be brought back any more."""
    if not _keeper_dead(look):
        return None
    return _finish(look, ends.failed("keeper_lost", "the keeper ended while the worker ran", retriable=True), report)


_RUNGS: tuple[Callable[[_Look, ProverReport], Progress | None], ...] = (
    _isolation,
    _undecided,
    _stop,
    _image,
    _success,
    _disrupted,
    _late,
    _probe,
    _ended,
    _vanished,
    _timeout,
    _keeper,
)
"""First match wins."""


def _overdue(look: _Look) -> bool:
    deadline = look.record.deadline_at
    return look.end is None and deadline is not None and look.now >= deadline


def _keeper_dead(look: _Look) -> bool:
    keeper = look.pod.keeper
    return look.running and keeper is not None and keeper.terminated is not None


def _since_release(record: Record, end: Terminated) -> float:
    released_at = record.entered(Phase.RELEASING)
    if released_at is None or end.finished_at is None:
        return 0.0
    return (end.finished_at - released_at).total_seconds()


# --- images ---------------------------------------------------------------------------------------------------------


def _image_ids(pod: PodView) -> tuple[tuple[str, str], ...]:
    everyone = (*(pod.init or ()), *(pod.containers or ()))
    return tuple((each.name, each.image_id) for each in everyone if each.image_id is not None)


def _other_image(pod: PodView) -> str | None:
    """Say which container runs another digest than the pod's spec pins; None when none is known to.

    Only digests are compared: the repository named may be another that holds the same image. An id without a repository
    is that of the image's configuration (images loaded onto the node, not pulled), which says nothing about the digest.
    """
    for name in ("keeper", "worker"):
        container, pinned = pod.container(name), _digest(pod.image(name))
        runs = _digest(container.image_id) if container is not None else None
        if pinned is not None and runs is not None and pinned != runs:
            return f"{name} runs {runs}, and not {pinned}"
    return None


def _digest(image: str | None) -> str | None:
    _, at, digest = (image or "").rpartition("@")
    return digest if at and digest.startswith("sha256:") else None


# --- the pod is gone ------------------------------------------------------------------------------------------------


def _without_pod(record: Record, events: tuple[EventView, ...] | None) -> Progress:
    """Only Events are left of it, and they do not live long. What they cannot say stays unknown, never isolated."""
    unknown = Evidence(end="unknown")
    if events is None:
        return NeedsEvents()
    # A 503 killed the worker: rule out a success that nobody saw, and a stop that came later.
    if ends.probe_killed_worker(events) and ends.answered_503(events):
        gone = ends.killed_by_probe(
            ProverReport(), events, None, _probe_since_release(record, events), record.timeout_seconds
        )
        return Finish(gone.phase, _expired(gone.result), unknown, delete_pod=True)
    # Somebody wanted it gone.
    if record.stop is not None:
        stopped = ends.stopped(record.stop.reason)
        return Finish(stopped.phase, _expired(stopped.result), unknown, delete_pod=True)
    why = ends.disruption_by(events, "the pod is gone, and nobody says why")
    lost = ends.lost(why.reason, why.message)
    return Finish(lost.phase, _expired(lost.result), unknown, delete_pod=True)


def _expired(result: Result) -> Result:
    return result.model_copy(update={"artifacts": "expired"})


def _probe_since_release(record: Record, events: tuple[EventView, ...]) -> float:
    """Seconds from the release to the kubelet's killing of the worker."""
    released_at = record.entered(Phase.RELEASING)
    killed = [event.last_at for event in events if event.container == "worker" and event.reason == "Killing"]
    times = [at for at in killed if at is not None]
    return 0.0 if released_at is None or not times else (min(times) - released_at).total_seconds()
