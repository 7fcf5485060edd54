"""The cluster port over the official client: raw JSON in and out, one generic path per kind, nothing retried.

Retrying has one owner (``retrying.py``). Typed models are not used: a field that the client does not know would
vanish in them, and with it whatever it lets a pod do.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from launcher.cluster.errors import Gone, NotFound, Unreachable
from launcher.cluster.execstream import open_exec
from launcher.cluster.lines import LineSplitter, LineTooLong
from launcher.cluster.port import ExecStream, Json, Kind, WatchEvent
from launcher.cluster.translate import error_for_status
from launcher.cluster.transport import Transport

PAGE = 500
"""Objects asked for at once; what kubectl asks for."""

LONGEST_EVENT = 8 << 20
"""Bytes of one watch event. Objects are at most 1.5 MiB in etcd, somewhat more as JSON."""

_LISTING_ATTEMPTS = 3

Objects = list[Json]


class KubeCluster:
    """A real cluster. Implements ``AdminPort``; made by ``connect.connect``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def now(self) -> datetime:
        """Return the API server's clock."""
        return self._transport.clock.now()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """Read one object; None when it is absent."""
        try:
            return await self._object(_operation("get", kind, name), "GET", path_of(kind, namespace, name))
        except NotFound:
            return None

    async def create(self, kind: Kind, namespace: str | None, body: Json, *, dry_run: bool = False) -> Json:
        """Create with strict field validation and return what was stored."""
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        name = body.get("metadata", {}).get("name", "")
        operation = _operation("dry-run" if dry_run else "create", kind, name)
        return await self._object(operation, "POST", path_of(kind, namespace), query, body)

    async def replace(self, kind: Kind, namespace: str, name: str, body: Json) -> Json:
        """Replace under the resourceVersion that the body carries."""
        path = path_of(kind, namespace, name)
        return await self._object(_operation("replace", kind, name), "PUT", path, {"fieldValidation": "Strict"}, body)

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_seconds: int | None = None
    ) -> bool:
        """Ask for deletion; False when it was absent."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            await self._object(_operation("delete", kind, name), "DELETE", path_of(kind, namespace, name), {}, options)
        except NotFound:
            return False
        return True

    @asynccontextmanager
    async def watch(
        self, kind: Kind, namespace: str, name: str, *, resource_version: str | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Watch one object until the server ends the watch."""
        limits = self._transport.limits
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(limits.watch))),
        }
        if resource_version is not None:
            query["resourceVersion"] = resource_version
        operation = _operation("watch", kind, name)
        idle = limits.watch + limits.watch_slack
        path = path_of(kind, namespace)
        async with self._transport.stream(operation, path, query=query, idle=idle) as pieces:
            events = _events(operation, pieces)
            try:
                yield events
            finally:
                await events.aclose()

    def exec(
        self, namespace: str, pod: str, container: str, argv: Sequence[str]
    ) -> AbstractAsyncContextManager[ExecStream]:
        """Run argv in a container with stdin attached."""
        path = f"{path_of(Kind.POD, namespace, pod)}/exec"
        return open_exec(self._transport, f"exec Pod {pod}", path, container, argv)

    @asynccontextmanager
    async def log(
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
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Read a container's log as it comes."""
        asked = {
            "container": container,
            "follow": "true" if follow else None,
            "timestamps": "true" if timestamps else None,
            "tailLines": tail_lines,
            "limitBytes": limit_bytes,
            "sinceTime": since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if since else None,
        }
        query = {name: str(value) for name, value in asked.items() if value is not None}
        limits = self._transport.limits
        idle = limits.log_idle if follow else limits.total
        path = f"{path_of(Kind.POD, namespace, pod)}/log"
        async with self._transport.stream(_operation("log", Kind.POD, pod), path, query=query, idle=idle) as pieces:
            yield pieces

    async def list(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> Objects:
        """List completely, page by page. A list whose continuation expired begins anew, at most three times."""
        query = {"limit": str(PAGE)}
        if labels:
            query["labelSelector"] = _selector(labels)
        if fields:
            query["fieldSelector"] = _selector(fields)
        for _ in range(_LISTING_ATTEMPTS - 1):
            try:
                return await self._pages(kind, namespace, query)
            except Gone:
                continue
        return await self._pages(kind, namespace, query)

    async def _pages(self, kind: Kind, namespace: str | None, query: Mapping[str, str]) -> Objects:
        found: Objects = []
        operation, path = _operation("list", kind), path_of(kind, namespace)
        token = ""
        while True:
            page = await self._object(operation, "GET", path, {**query, "continue": token} if token else query)
            # Items of a list do not say what they are; with these two they look like the answer to a get.
            head = {"apiVersion": kind.value.api_version, "kind": kind.value.kind}
            found += [head | item for item in page.get("items") or ()]
            token = page.get("metadata", {}).get("continue", "")
            if not token:
                return found

    async def server_version(self) -> tuple[int, int]:
        """(major, minor) of the API server."""
        version = await self._object("version", "GET", "/version")
        return _digits(version.get("major")), _digits(version.get("minor"))

    async def _object(
        self, operation: str, method: str, path: str, query: Mapping[str, str] | None = None, body: Json | None = None
    ) -> Json:
        found = await self._transport.json(operation, method, path, query=query, body=body)
        if not isinstance(found, dict):
            raise Unreachable(operation, status=HTTPStatus.OK, reason="NotAnApiServer")
        return found


def path_of(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    """Return the REST path of a kind's collection, or of one object."""
    resource = kind.value
    parts = ["api" if "/" not in resource.api_version else "apis", resource.api_version]
    if resource.namespaced:
        if not namespace:
            raise ValueError(f"{resource.kind} lives in a namespace")
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(resource.plural)
    if name is not None:
        if not name:
            raise ValueError("an object without a name would be the whole collection")
        parts.append(quote(name, safe=""))
    return "/" + "/".join(parts)


async def _events(operation: str, pieces: AsyncIterator[bytes]) -> AsyncGenerator[WatchEvent, None]:
    splitter = LineSplitter(LONGEST_EVENT)
    async for piece in pieces:
        try:
            lines = splitter.feed(piece)
        except LineTooLong as error:
            raise Unreachable(operation, reason="EventTooLong") from error
        for line in lines:
            if line.strip():
                yield event_of(operation, line)


def event_of(operation: str, line: bytes) -> WatchEvent:
    """Return one watch event, or raise what an ERROR event says (410 comes so, inside an answer 200)."""
    try:
        said: Any = json.loads(line)
        kind, found = said["type"], said["object"]
    except (ValueError, TypeError, KeyError) as error:
        raise Unreachable(operation, reason="MalformedEvent") from error
    if kind == "ERROR":
        status = found if isinstance(found, dict) else {}
        code = status.get("code")
        raise error_for_status(operation, code if isinstance(code, int) else 500, status, {})
    if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK") or not isinstance(found, dict):
        raise Unreachable(operation, reason="UnknownEvent")
    return WatchEvent(kind, found)


def _operation(verb: str, kind: Kind, name: str = "") -> str:
    return f"{verb} {kind.value.kind} {name}".rstrip()


def _selector(pairs: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(pairs.items()))


def _digits(text: object) -> int:
    """Read ``34`` out of ``34`` or ``34+``."""
    digits = "".join(c for c in str(text) if c.isdigit())
    return int(digits) if digits else 0
