"""A run that was released, and whose worker has not been seen started. Pure."""

from datetime import datetime, timedelta

from launcher.cluster.views import PodView
from launcher.decide.gate_verdict import gate_evidence, gate_failed, gate_opened
from launcher.decide.images import image_ids
from launcher.decide.outcome import Outcome, failed, lost, stopped, worker_ended
from launcher.decide.recovery import abandoned, abandoned_result, lease_expired
from launcher.decide.sight import (
    Finish,
    Look,
    NeedsEvents,
    Progress,
    Started,
    Unchanged,
    never_ran,
    waits_for,
    worker_started_at,
)
from launcher.decide.waiting import is_stuck, waiting
from records.model import Phase

SANDBOX_MADE_AGAIN = timedelta(seconds=30)
"""A prover that restarts is back in 10 s at most (the kubelet's back-off); one that stays away lost its sandbox."""


def released(look: Look) -> Progress:
    """Decide for the phase ``releasing``."""
    record, pod = look.record, look.pod
    # The first to see the worker started fixes the times that all observers reckon with.
    if (begun := _started(look)) is not None:
        return begun
    # Somebody wants it ended, and the worker has not started.
    if record.stop is not None:
        return never_ran(stopped(record.stop.reason), pod)
    # The pod's end came from outside.
    if (why := look.disruption) is not None:
        return never_ran(lost(why.reason, why.message), pod)
    # The pod's own key was missing.
    if (closed := gate_failed(pod, abandoned=lease_expired(record, look.now))) is not None:
        return never_ran(closed, pod)
    # The worker ended without having started: its command could not be run.
    if look.end is not None:
        return never_ran(worker_ended(look.end), pod)
    # A sandbox that dies right after the release leaves the pod pending for ever.
    if _sandbox_lost(look):
        return never_ran(lost("sandbox_lost", "the pod's sandbox died right after the release"), pod)
    return _still_starting(look)


def _still_starting(look: Look) -> Progress:
    record, pod, events = look.record, look.pod, look.events
    # Only Events know why nothing moves.
    if events is None and is_stuck(pod, look.now):
        return NeedsEvents()
    held_up = waiting(pod, events)
    # Waiting cannot help.
    if held_up is not None and held_up.fatal:
        return never_ran(failed(held_up.code, held_up.message), pod)
    # The pod is over, and no worker ever was.
    if look.over:
        return never_ran(_over_without_worker(pod), pod)
    # The marker never came: whoever was to send it is away.
    if not gate_opened(pod) and abandoned(record, look.now, after=look.windows.abandoned_after):
        return given_up(waits_for(pod, events), pod)
    # Waiting could have helped, and did not. A gate that still waits knows the bound itself.
    if look.now >= record.provision_by and gate_opened(pod):
        code = held_up.code if held_up is not None else "pod_start_timeout"
        return never_ran(failed(code, waits_for(pod, events)), pod)
    return Unchanged(waits_for(pod, events))


def given_up(why: str, pod: PodView | None) -> Finish:
    """No launcher is left: the run fails, and its pod goes."""
    evidence = gate_evidence(pod) if pod is not None else None
    return Finish(Phase.FAILED, abandoned_result(why), evidence, delete_pod=True)


def _started(look: Look) -> Started | None:
    started_at = worker_started_at(look.pod)
    if started_at is None:
        return None
    deadline = _by_server(look, started_at) + timedelta(seconds=look.record.timeout_seconds)
    return Started(started_at, deadline, deadline + look.windows.collect, image_ids(look.pod))


def _by_server(look: Look, started_at: datetime) -> datetime:
    """The worker's start by the API server's clock, as near as a node's clock that may be wrong lets it be known.

    It cannot be later than now. Nor can it be earlier than the release plus the time from the gate's end to the start,
    both of which are the node's: a slow clock would cut the run short, an advanced one would let it run on.
    """
    gate = look.pod.gate.terminated if look.pod.gate else None
    begun = started_at
    if (released_at := look.record.entered(Phase.RELEASING)) is not None:
        opened_at = gate.finished_at if gate is not None else None
        took = started_at - opened_at if opened_at is not None else timedelta()
        begun = max(begun, released_at + max(took, timedelta()))
    return min(begun, look.now)


def _over_without_worker(pod: PodView) -> Outcome:
    if pod.reason == "DeadlineExceeded":
        return failed("pod_start_timeout", "the pod's own deadline came before the worker ran")
    return lost("sandbox_lost", pod.message or "the pod ended before the worker ran")


def _sandbox_lost(look: Look) -> bool:
    """Tell a lost sandbox from a prover that is only restarting while the worker's image is still being pulled."""
    prover = look.pod.prover
    away = prover.terminated if prover is not None else None
    if not gate_opened(look.pod) or away is None:
        return False
    sandbox = look.pod.condition("PodReadyToStartContainers")
    if sandbox is not None and sandbox.status == "False":
        return True
    return away.finished_at is not None and look.now > away.finished_at + SANDBOX_MADE_AGAIN
