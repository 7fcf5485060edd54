"""What ends a pod besides the run and its launcher: evictions, preemptions, lost nodes, foreign deletes. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from launcher.cluster.views import EventView, PodView, Terminated

UNKNOWN_END = "ContainerStatusUnknown"
"""The reason under which a kubelet invents the end of a container that it cannot find any more."""

DELETED = "pod_deleted"
"""The code when nothing says why the pod was deleted."""


@dataclass(frozen=True)
class Disruption:
    """Something other than run and launcher ended the pod. ``began_at`` is None when that cannot be told."""

    reason: str
    message: str
    began_at: datetime | None = None


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
        return Disruption(DELETED, "the pod was deleted by someone else", pod.deletion_began_at)
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
        # A taint that went away again takes its announcement back under the same reason.
        if event.reason in _EVENT_REASONS and not event.message.startswith("Cancelling"):
            return Disruption(_EVENT_REASONS[event.reason], event.message or event.reason, event.first_at)
    return Disruption(DELETED, missing)


def ended_before(end: Terminated, disruption: Disruption | None) -> bool:
    """Whether the worker ended on its own, before the disruption began. A tie is a disruption, and so is doubt."""
    if disruption is None:
        return True
    if disruption.began_at is None or end.finished_at is None:
        return False
    return end.finished_at < disruption.began_at


def _began(pod: PodView) -> datetime | None:
    """The earliest moment at which the disruption can have begun; nodes' and the server's times are taken as one here.

    A kubelet's own eviction carries no time (and its deletion may come much later, or never): the keeper was ended by
    it, at most its grace period after the begin.
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
