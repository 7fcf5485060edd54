"""What a pod that has not started its worker is waiting for, and whether waiting can help. Pure.

Two things fail at once, since no time heals them: a name that is no image, and an image that may not be pulled. All
else may heal (a registry comes back, a Secret appears within 10-15 s, a node is added), so it fails only when the bound
is over.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from launcher.cluster.views import Condition, ContainerView, EventView, PodView, Waiting

HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull"})

PULLING = frozenset({"ErrImagePull", "ImagePullBackOff"})
"""They alternate every few seconds and are one state."""

TROUBLE = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
        "ImageInspectError",
        "RegistryUnavailable",
        "PostStartHookError",
    }
)

SILENT = frozenset({"PodInitializing", "ContainerCreating"})
"""What a kubelet says while it is at work, and also when it gets nowhere: then only Events tell why."""

STUCK_AFTER = timedelta(seconds=10)
"""A pod that its node has known for so long and that has not run anything is worth a look at its Events."""

TELLING_EVENTS = (
    "FailedMount",
    "FailedAttachVolume",
    "FailedCreatePodSandBox",
    "FailedScheduling",
    "Failed",
    "NodeNotReady",
)


@dataclass(frozen=True)
class Wait:
    """Why the worker does not run yet. ``code`` is the reason once it is given up; ``fatal``: give up now."""

    message: str
    code: str = "pod_start_timeout"
    fatal: bool = False


def waiting(pod: PodView, events: tuple[EventView, ...] | None = None) -> Wait | None:
    """Say what holds the pod up, in the kubelet's or scheduler's first useful words; None while all goes its course."""
    scheduled = pod.condition("PodScheduled")
    # No node yet.
    if scheduled is not None and not scheduled.holds:
        return _unscheduled(scheduled)
    # A container says itself what is the matter; the first in the order of starting holds up the rest.
    for container in (*(pod.init or ()), *(pod.containers or ())):
        if (trouble := _trouble(container, events)) is not None:
            return trouble
    # The kubelet is silent: its Events may know more.
    told = _told(events)
    return None if told is None else Wait(told, "pod_start_failed")


def course(pod: PodView) -> str:
    """Say how far a normal start has come, for people who watch it."""
    gate, worker = pod.gate, pod.worker
    if gate is not None and gate.terminated is not None and worker is not None and worker.waiting is not None:
        return "the gate is open; the worker's container is being made"
    if gate is not None and gate.running is not None:
        return "the gate waits for proof and seed"
    if pod.condition("PodScheduled") is None:
        return "the pod waits for a node"
    return "the pod's first containers are being made"


def is_stuck(pod: PodView, now: datetime) -> bool:
    """Whether nothing of the pod has run although its node has long known it, and its status does not say why."""
    if pod.phase != "Pending" or pod.started_at is None or now - pod.started_at < STUCK_AFTER:
        return False
    everyone = (*(pod.init or ()), *(pod.containers or ()))
    return all(each.waiting is not None and each.waiting.reason in SILENT for each in everyone)


def _unscheduled(scheduled: Condition) -> Wait:
    return Wait(
        f"no node takes the pod: {scheduled.reason or 'not scheduled'}: {scheduled.message or 'no reason given'}"
    )


def _trouble(container: ContainerView, events: tuple[EventView, ...] | None) -> Wait | None:
    state = container.waiting
    if state is None or state.reason is None or state.reason in SILENT:
        return None
    if state.reason in HOPELESS:
        return Wait(_said(container.name, state), "pod_start_failed", fatal=True)
    if state.reason in PULLING:
        return Wait(_pulling(container.name, state, events), "pod_start_failed")
    if state.reason in TROUBLE:
        return Wait(_said(container.name, state), "pod_start_failed")
    return Wait(_said(container.name, state))


def _pulling(name: str, state: Waiting, events: tuple[EventView, ...] | None) -> str:
    """Make one sentence of the two states, with the cause; older kubelets back off without it, their Events have it."""
    said = state.message or ""
    cause = said.partition("ErrImagePull: ")[2] if state.reason == "ImagePullBackOff" else said
    return f"the image of {name} cannot be pulled: {cause or _failed_pull(name, events) or said or 'no reason given'}"


def _failed_pull(name: str, events: tuple[EventView, ...] | None) -> str | None:
    pulls = (e.message for e in events or () if e.container == name and e.message.startswith("Failed to pull image"))
    return next(pulls, None)


def _said(name: str, state: Waiting) -> str:
    return f"{name}: {state.reason}: {state.message or 'no reason given'}"


def _told(events: tuple[EventView, ...] | None) -> str | None:
    telling = [event for event in events or () if event.warning and event.reason in TELLING_EVENTS and event.message]
    if not telling:
        return None
    newest = max(telling, key=lambda event: event.last_at.timestamp() if event.last_at else 0.0)
    return f"{newest.reason}: {newest.message}"
