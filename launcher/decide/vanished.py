"""A released run whose pod is gone. Pure.

Only Events are left of it, and they do not live long. What they cannot say stays unknown, never isolated.
"""

from launcher.cluster.views import EventView
from launcher.decide.disruption import disruption_by
from launcher.decide.outcome import Outcome, answered_503, killed_by_probe, lost, probe_killed_worker, stopped
from launcher.decide.prover_report import UNREAD
from launcher.decide.sight import Finish, NeedsEvents, Progress
from records.model import Evidence, Phase, Record


def vanished(record: Record, events: tuple[EventView, ...] | None) -> Progress:
    """Decide for a run that was released (or active) and has no pod any more."""
    if events is None:
        return NeedsEvents()
    # A 503 killed the worker: rule out a success that nobody saw, and a stop that came later.
    if probe_killed_worker(events) and answered_503(events):
        after = _killed_after_release(record, events)
        return _gone(killed_by_probe(UNREAD, events, None, after, record.timeout_seconds))
    # Somebody wanted it gone.
    if record.stop is not None:
        return _gone(stopped(record.stop.reason))
    # Some disruptions leave no Event; one may have been seen while the pod was still there to say so.
    if record.evidence.disruption is not None:
        return _gone(lost(record.evidence.disruption, "the pod is gone; it was seen being ended so"))
    why = disruption_by(events, "the pod is gone, and nobody says why")
    return _gone(lost(why.reason, why.message))


def _gone(outcome: Outcome) -> Finish:
    result = outcome.result.model_copy(update={"artifacts": "expired"})
    return Finish(outcome.phase, result, Evidence(end="unknown"), delete_pod=True)


def _killed_after_release(record: Record, events: tuple[EventView, ...]) -> float:
    """Seconds from the release to the kubelet's killing of the worker."""
    released_at = record.entered(Phase.RELEASING)
    killed = [event.last_at for event in events if event.container == "worker" and event.reason == "Killing"]
    times = [at for at in killed if at is not None]
    return 0.0 if released_at is None or not times else (min(times) - released_at).total_seconds()
