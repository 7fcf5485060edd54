"""Narrow, frozen views of what the API server publishes about a pod, in which "not published" differs from "none".

Statuses are written by kubelets of many versions, come late, go back and vanish. A view never raises on an odd object:
a value of the wrong shape reads as not published (None), an unknown phase as ``Unknown``. Deciding what follows from
that is the business of ``launcher/decide``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self, cast, get_args

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]

DEFAULT_GRACE_SECONDS = 30
"""What the API server fills in for terminationGracePeriodSeconds; ours always say it."""


@dataclass(frozen=True)
class Waiting:
    """A container that does not run (yet, or again)."""

    reason: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class Running:
    """A container that runs, by its kubelet's last word."""

    started_at: datetime | None = None


@dataclass(frozen=True)
class Terminated:
    """A container that ended. Times are the node's, whole seconds.

    ``started_at`` is None when it never started: kubelets publish 1970 then. ``exit_code`` is None only in malformed
    objects.
    """

    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


ContainerState = Waiting | Running | Terminated


@dataclass(frozen=True)
class ContainerView:
    """One entry of (init)containerStatuses.

    ``state`` is None when none was published; ``last`` is the life before this one.
    """

    name: str
    state: ContainerState | None = None
    last: Terminated | None = None
    restarts: int = 0
    container_id: str | None = None
    image_id: str | None = None

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Self:
        """Read one container status."""
        last = _state(_mapping(status.get("lastState")))
        return cls(
            name=_text(status.get("name")) or "",
            state=_state(_mapping(status.get("state"))),
            last=last if isinstance(last, Terminated) else None,
            restarts=_whole(status.get("restartCount")) or 0,
            container_id=_text(status.get("containerID")),
            image_id=_text(status.get("imageID")),
        )

    @property
    def waiting(self) -> Waiting | None:
        """Why it does not run; None when it runs, has ended, or nothing was published."""
        return self.state if isinstance(self.state, Waiting) else None

    @property
    def running(self) -> Running | None:
        """Since when it runs; None otherwise."""
        return self.state if isinstance(self.state, Running) else None

    @property
    def terminated(self) -> Terminated | None:
        """How it ended; None while it has not, by its present state (see ``last`` for an earlier life)."""
        return self.state if isinstance(self.state, Terminated) else None


@dataclass(frozen=True)
class Condition:
    """One pod condition. ``status`` is the server's own word: True, False or Unknown."""

    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    changed_at: datetime | None = None

    @property
    def holds(self) -> bool:
        """True when the condition is said to be so."""
        return self.status == "True"


@dataclass(frozen=True)
class EventView:
    """One Event of the pod. ``container`` is the name in its field path, when it has one."""

    reason: str
    message: str
    warning: bool = False
    container: str | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Self:
        """Read an Event of either API; repeated ones carry their newest time in ``last_at``."""
        first = _time(event.get("firstTimestamp")) or _time(event.get("eventTime"))
        series = _mapping(event.get("series"))
        return cls(
            reason=_text(event.get("reason")) or "",
            message=_text(event.get("message")) or _text(event.get("note")) or "",
            warning=event.get("type") == "Warning",
            container=_container_of(_text(_mapping(event.get("involvedObject")).get("fieldPath"))),
            first_at=first,
            last_at=_time(event.get("lastTimestamp")) or _time(series.get("lastObservedTime")) or first,
        )


@dataclass(frozen=True)
class PodView:
    """What a pod object says. ``init`` and ``containers`` are None when no statuses were published at all."""

    uid: str
    name: str
    phase: PodPhase = "Unknown"
    reason: str | None = None
    message: str | None = None
    deletion_at: datetime | None = None
    deletion_grace: int | None = None
    grace_seconds: int = DEFAULT_GRACE_SECONDS
    active_deadline_seconds: int | None = None
    generation: int | None = None
    resource_version: str | None = None
    node: str | None = None
    started_at: datetime | None = None
    ips: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    init: tuple[ContainerView, ...] | None = None
    containers: tuple[ContainerView, ...] | None = None
    images: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, pod: Mapping[str, Any]) -> Self:
        """Read a raw pod. Never raises: what has the wrong shape reads as not published."""
        meta, spec, status = (_mapping(pod.get(part)) for part in ("metadata", "spec", "status"))
        grace = _whole(spec.get("terminationGracePeriodSeconds"))
        return cls(
            uid=_text(meta.get("uid")) or "",
            name=_text(meta.get("name")) or "",
            phase=_phase(status.get("phase")),
            reason=_text(status.get("reason")),
            message=_text(status.get("message")),
            deletion_at=_time(meta.get("deletionTimestamp")),
            deletion_grace=_whole(meta.get("deletionGracePeriodSeconds")),
            grace_seconds=DEFAULT_GRACE_SECONDS if grace is None else grace,
            active_deadline_seconds=_whole(spec.get("activeDeadlineSeconds")),
            generation=_whole(meta.get("generation")),
            resource_version=_text(meta.get("resourceVersion")),
            node=_text(spec.get("nodeName")),
            started_at=_time(status.get("startTime")),
            ips=_ips(status),
            conditions=tuple(_condition(item) for item in _mappings(status.get("conditions")) or ()),
            init=_containers(status.get("initContainerStatuses")),
            containers=_containers(status.get("containerStatuses")),
            images=_images(spec),
        )

    def container(self, name: str) -> ContainerView | None:
        """The status of a container or init container; None when none was published."""
        everyone = (*(self.init or ()), *(self.containers or ()))
        return next((each for each in everyone if each.name == name), None)

    @property
    def prover(self) -> ContainerView | None:
        """The sidecar that proves the policy."""
        return self.container("prover")

    @property
    def gate(self) -> ContainerView | None:
        """The init container that holds the worker closed."""
        return self.container("gate")

    @property
    def keeper(self) -> ContainerView | None:
        """The container that hands results out."""
        return self.container("keeper")

    @property
    def worker(self) -> ContainerView | None:
        """The untrusted container."""
        return self.container("worker")

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type; None when it was not published."""
        return next((each for each in self.conditions if each.type == kind), None)

    def image(self, name: str) -> str | None:
        """The image that the pod's spec names for a container; None when there is no such container."""
        return dict(self.images).get(name)

    @property
    def deletion_began_at(self) -> datetime | None:
        """When somebody asked for the deletion: deletionTimestamp says when the grace period will be over.

        The server lowers both the timestamp and deletionGracePeriodSeconds once the containers have ended, so the pod's
        own grace period is what has to be taken off. A deletion with a shorter grace period began later than this says.
        """
        return None if self.deletion_at is None else self.deletion_at - timedelta(seconds=self.grace_seconds)

    @property
    def deadline_at(self) -> datetime | None:
        """When the kubelet ends the pod by its activeDeadlineSeconds, by the node's clock; None when unknown."""
        if self.started_at is None or self.active_deadline_seconds is None:
            return None
        return self.started_at + timedelta(seconds=self.active_deadline_seconds)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _mappings(value: object) -> tuple[Mapping[str, Any], ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(cast("Mapping[str, Any]", item) for item in value if isinstance(item, Mapping))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _time(value: object) -> datetime | None:
    """An RFC 3339 time in UTC; None for anything else, and for 1970, with which kubelets say "never"."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    if at.tzinfo is None:
        return None
    try:
        at = at.astimezone(UTC)
    except OverflowError:
        return None
    return None if at.year <= 1970 else at  # noqa: PLR2004  # the epoch stands for "never" in kubelets' statuses


def _phase(value: object) -> PodPhase:
    return cast("PodPhase", value) if isinstance(value, str) and value in get_args(PodPhase) else "Unknown"


def _state(state: Mapping[str, Any]) -> ContainerState | None:
    """The one state that is published. Terminated wins over odd combinations: an end is never taken back by a guess."""
    if isinstance(state.get("terminated"), Mapping):
        end = state["terminated"]
        return Terminated(
            exit_code=_whole(end.get("exitCode")),
            reason=_text(end.get("reason")),
            message=_text(end.get("message")),
            started_at=_time(end.get("startedAt")),
            finished_at=_time(end.get("finishedAt")),
        )
    if isinstance(state.get("running"), Mapping):
        return Running(_time(state["running"].get("startedAt")))
    if isinstance(state.get("waiting"), Mapping):
        return Waiting(_text(state["waiting"].get("reason")), _text(state["waiting"].get("message")))
    return None


def _containers(value: object) -> tuple[ContainerView, ...] | None:
    statuses = _mappings(value)
    return tuple(ContainerView.of(status) for status in statuses) if statuses else None


def _condition(item: Mapping[str, Any]) -> Condition:
    return Condition(
        type=_text(item.get("type")) or "",
        status=_text(item.get("status")) or "Unknown",
        reason=_text(item.get("reason")),
        message=_text(item.get("message")),
        changed_at=_time(item.get("lastTransitionTime")),
    )


def _ips(status: Mapping[str, Any]) -> tuple[str, ...]:
    """All addresses; servers of one family publish podIP alone for a moment."""
    several = tuple(ip for item in _mappings(status.get("podIPs")) or () if (ip := _text(item.get("ip"))))
    one = _text(status.get("podIP"))
    return several or ((one,) if one else ())


def _images(spec: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    declared = (*(_mappings(spec.get("initContainers")) or ()), *(_mappings(spec.get("containers")) or ()))
    return tuple((str(each.get("name")), image) for each in declared if (image := _text(each.get("image"))))


def _container_of(path: str | None) -> str | None:
    """``spec.containers{worker}`` → ``worker``."""
    return path.partition("{")[2].rstrip("}") or None if path else None
