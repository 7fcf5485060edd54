"""A pod's status as a kubelet of Kubernetes 1.34 writes it, from the states of its containers."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from launcher.cluster.port import Json
from launcher.testing.fake_store import stamp

NEVER_STARTED = "1970-01-01T00:00:00Z"

_container_ids = itertools.count(1)


@dataclass
class Container:
    """One container's status. ``state`` is the raw one."""

    name: str
    image: str
    state: Json = field(default_factory=lambda: {"waiting": {"reason": "PodInitializing"}})
    last: Json = field(default_factory=dict)
    restarts: int = 0
    container_id: str | None = None
    image_id: str = ""

    @property
    def runs(self) -> bool:
        """Whether it runs now."""
        return "running" in self.state

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return "terminated" in self.state

    def start(self, at: datetime, image_id: str | None = None) -> None:
        """Let it run, with a new id."""
        self.container_id = f"containerd://{next(_container_ids):064x}"
        self.image_id = image_id or self.image
        self.state = {"running": {"startedAt": stamp(at)}}

    def wait(self, reason: str, message: str | None = None) -> None:
        """Let it wait."""
        self.state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}

    def end(self, at: datetime, code: int, reason: str | None = None, message: str | None = None) -> None:
        """Let it have ended. StartError is one that never ran."""
        began = self.state.get("running", {}).get("startedAt", NEVER_STARTED)
        ended = {
            "containerID": self.container_id,
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "startedAt": NEVER_STARTED if reason == "StartError" else began,
            "finishedAt": stamp(at),
        }
        self.state = {"terminated": ended | ({"message": message} if message else {})}

    def restart(self, at: datetime, code: int) -> None:
        """Let it have ended and run again."""
        self.end(at, code)
        self.last = self.state
        self.restarts += 1
        self.start(at, self.image_id)

    def as_json(self) -> Json:
        """Return the status."""
        body: dict[str, Any] = {
            "name": self.name,
            "image": self.image,
            "imageID": self.image_id,
            "state": self.state,
            "lastState": self.last,
            "restartCount": self.restarts,
            "ready": self.runs or self.state.get("terminated", {}).get("exitCode") == 0,
            "started": self.runs,
        }
        return body | ({"containerID": self.container_id} if self.container_id else {})


@dataclass
class PodStatus:
    """The whole status. ``outcome`` holds phase, reason and message once the pod has ended as a whole."""

    init: Mapping[str, Container]
    regular: Mapping[str, Container]
    started_at: datetime
    ips: tuple[str, ...]
    host_ips: tuple[str, ...] = ("10.231.0.2", "fd31::2")
    outcome: Json = field(default_factory=dict)
    disruption: str | None = None

    @classmethod
    def of(cls, spec: Json, at: datetime, ips: tuple[str, ...]) -> "PodStatus":
        """Return the status of a pod that a node has just taken."""
        init = {one["name"]: Container(one["name"], one["image"]) for one in spec.get("initContainers", ())}
        regular = {one["name"]: Container(one["name"], one["image"]) for one in spec["containers"]}
        return cls(init, regular, at, ips)

    def __getitem__(self, name: str) -> Container:
        return self.init[name] if name in self.init else self.regular[name]

    @property
    def containers(self) -> list[Container]:
        """All of them, init containers first."""
        return [*self.init.values(), *self.regular.values()]

    @property
    def phase(self) -> str:
        """Pending until every regular container has been created; ended only by ``outcome``."""
        if self.outcome:
            return str(self.outcome["phase"])
        waiting = [one for one in self.regular.values() if "waiting" in one.state]
        return "Pending" if waiting else "Running"

    def as_json(self) -> Json:
        """Return the status object."""
        body: dict[str, Any] = {
            "phase": self.phase,
            "conditions": self._conditions(),
            "containerStatuses": [one.as_json() for one in self.regular.values()],
            "hostIP": self.host_ips[0],
            "hostIPs": [{"ip": ip} for ip in self.host_ips],
            "podIP": self.ips[0],
            "podIPs": [{"ip": ip} for ip in self.ips],
            "qosClass": "Guaranteed",
            "startTime": stamp(self.started_at),
        }
        if self.init:
            body["initContainerStatuses"] = [one.as_json() for one in self.init.values()]
        return body | self.outcome

    def _conditions(self) -> list[Json]:
        initialized = all(
            one.runs or one.state.get("terminated", {}).get("exitCode") == 0 for one in self.init.values()
        )
        ready = not self.outcome and all(one.runs for one in self.regular.values())
        said = [("PodScheduled", True), ("Initialized", initialized), ("Ready", ready), ("ContainersReady", ready)]
        conditions: list[Json] = [{"type": kind, "status": str(holds)} for kind, holds in said]
        if self.disruption is not None:
            conditions.append({"type": "DisruptionTarget", "status": "True", "reason": self.disruption})
        return conditions
