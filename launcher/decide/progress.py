"""What is to be written about a run now, from its record, its pod and, where an end is near, its prover. Pure.

``progress`` answers with one value. ``NeedsProver`` and ``NeedsEvents`` ask for facts that cost a request more; whoever
gathers comes back with them (or with what says that they cannot be had) and gets an answer that asks for less.
Every ladder is read from the top, first match wins.
"""

from datetime import datetime

from launcher.cluster.views import EventView, PodView
from launcher.decide.active import active
from launcher.decide.gate_verdict import gate_failed
from launcher.decide.outcome import failed, stopped
from launcher.decide.prover_report import ProverReport
from launcher.decide.recovery import abandoned, lease_expired
from launcher.decide.released import given_up, released
from launcher.decide.sight import (
    Finish,
    Look,
    NeedsEvents,
    NeedsProver,
    Noted,
    Progress,
    Started,
    Unchanged,
    Windows,
    never_ran,
    waits_for,
    worker_started_at,
)
from launcher.decide.vanished import vanished
from launcher.decide.waiting import is_stuck
from records.model import Phase, Record

__all__ = [
    "Finish",
    "NeedsEvents",
    "NeedsProver",
    "Noted",
    "Progress",
    "Started",
    "Unchanged",
    "Windows",
    "progress",
]

_DEFAULT_WINDOWS = Windows()


def progress(
    record: Record,
    pod: PodView | None,
    now: datetime,
    *,
    prover: ProverReport | None = None,
    events: tuple[EventView, ...] | None = None,
    windows: Windows = _DEFAULT_WINDOWS,
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
    # What happened in a pod that is gone, only Events can still tell.
    if ours is None:
        return vanished(record, events)
    look = Look(record, ours, now, prover, events, windows)
    return released(look) if record.phase is Phase.RELEASING else active(look)


def _provisioning(
    record: Record, pod: PodView | None, now: datetime, events: tuple[EventView, ...] | None, windows: Windows
) -> Progress:
    # A worker without a recorded release: something in the pod let it pass that is not our gate.
    if pod is not None and worker_started_at(pod) is not None:
        return never_ran(failed("attestation_failed", "the worker started although nothing had been released"), pod)
    # Somebody wants it ended, and nothing untrusted has run.
    if record.stop is not None:
        return never_ran(stopped(record.stop.reason), pod)
    # Only Events know why nothing moves.
    if pod is not None and events is None and is_stuck(pod, now):
        return NeedsEvents()
    # The holder of the lease sees what we see, and knows more.
    if not lease_expired(record, now):
        return Unchanged(waits_for(pod, events))
    # Nobody holds it, and the gate gave up: its reason is better than "abandoned".
    if pod is not None and (closed := gate_failed(pod, abandoned=True)) is not None:
        return never_ran(closed, pod)
    # Nobody will go on: whoever could take it over has had the time.
    if abandoned(record, now, after=windows.abandoned_after):
        return given_up(waits_for(pod, events), pod)
    return Unchanged(f"the launching replica is away; {waits_for(pod, events)}")
