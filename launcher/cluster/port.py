"""What we need of a cluster: as few methods as the steps use, over raw JSON objects.

Objects go in and come out as the API server's own JSON (camelCase dicts). Typed models would hide fields that they do
not know. Reads return ``None`` for what is absent; everything else that is not success raises an error of
``cluster/errors.py``.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal, Protocol

Json = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """Where a kind lives in the API."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True


class Kind(Enum):
    """The kinds we touch. The value says where the API serves them."""

    CONFIG_MAP = Resource("v1", "ConfigMap", "configmaps")
    SECRET = Resource("v1", "Secret", "secrets")
    POD = Resource("v1", "Pod", "pods")
    SERVICE = Resource("v1", "Service", "services")
    EVENT = Resource("v1", "Event", "events")
    SERVICE_ACCOUNT = Resource("v1", "ServiceAccount", "serviceaccounts")
    NAMESPACE = Resource("v1", "Namespace", "namespaces", namespaced=False)
    NETWORK_POLICY = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
    DEPLOYMENT = Resource("apps/v1", "Deployment", "deployments")
    ACCESS_REVIEW = Resource(
        "authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False
    )


@dataclass(frozen=True)
class WatchEvent:
    """One change of the watched object. ``object`` is raw JSON; for DELETED it is the last state."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Json


@dataclass(frozen=True)
class ExecStatus:
    """What channel 3 said. It explains a failure and proves nothing: success is what came back in-band."""

    success: bool
    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None


class ExecStream(Protocol):
    """Both directions of one exec. Sending blocks when the far side does not read (back-pressure).

    Receiving and sending may happen at the same time, each from one task. Whoever sends much must receive, too: a
    process that waits for its output to be taken does not read.
    """

    async def send(self, data: bytes) -> None:
        """Write to the process's stdin, at most 128 KiB a call. Raises ExecFailed when the stream has broken."""

    async def close_stdin(self) -> None:
        """Half-close, where the server speaks v5; nothing otherwise. Never rely on it: lengths are told in-band."""

    async def receive(self) -> bytes | None:
        """Return the next piece of stdout, or None at the stream's end (clean or cut: the two cannot be told apart).

        Raises ExecFailed when the server says that the process could not be started, or was lost; ``started`` tells
        which.
        """

    @property
    def stderr(self) -> bytes:
        """The last 4 KiB of the process's stderr."""

    @property
    def status(self) -> ExecStatus | None:
        """What the server said about the end; None while it runs or when the stream was cut."""


class ClusterPort(Protocol):
    """The launcher's view of a cluster; implemented by kube.py and, in memory, by the fake for tests."""

    def now(self) -> datetime:
        """Return the API server's clock: the Date header of its answers, carried on by the monotonic clock. UTC."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """Read one object; None when it is absent."""

    async def create(self, kind: Kind, namespace: str | None, body: Json, *, dry_run: bool = False) -> Json:
        """Create with fieldValidation=Strict and return what was stored.

        Raises AlreadyExists, Refused, Conflict (a quota's update race: nothing was created), NotFound (no such
        namespace).
        """

    async def replace(self, kind: Kind, namespace: str, name: str, body: Json) -> Json:
        """Replace under the resourceVersion that body carries.

        Raises Conflict when it is no longer the stored one, NotFound.
        """

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_seconds: int | None = None
    ) -> bool:
        """Ask for deletion; False when it was absent. Raises Conflict when the stored uid is another."""

    def watch(
        self, kind: Kind, namespace: str, name: str, *, resource_version: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Watch one object.

        Without a resourceVersion the present object comes first, as ADDED. The iterator ends when the server ends the
        watch (watch again from the last resourceVersion); raises Gone, Unreachable. A connection that died silently
        is found out by an idle deadline. An absent object is no error: its creation is the first event.
        """

    def exec(
        self, namespace: str, pod: str, container: str, argv: Sequence[str]
    ) -> AbstractAsyncContextManager[ExecStream]:
        """Run argv in a container with stdin attached. Leaving the context aborts the connection.

        Raises NotFound (no such pod), Refused (access; no such container in the pod's spec), Throttled, and
        ExecFailed with ``started=False`` for everything else that kept it from beginning. A container that is not
        running yet, or no more, shows at the first ``receive`` on some servers.
        """

    def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool = False,
        timestamps: bool = False,
        tail_lines: int | None = None,
        limit_bytes: int | None = None,
        since: datetime | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Read a container's log as it comes.

        Raises NotFound (no such pod), Refused (400: no such container, or not started yet), Unreachable (cut, or silent
        for longer than the idle deadline; a follower goes on from the last timestamp it saw).

        ``since`` has whole seconds on the wire and is rounded down, so lines already seen come again.
        """


class AdminPort(ClusterPort, Protocol):
    """What the reaper and the doctor need besides: lists, and facts of the cluster."""

    async def list(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> list[Json]:
        """List by label and field selectors, paged inside; complete or an error."""

    async def server_version(self) -> tuple[int, int]:
        """(major, minor) of the API server."""
