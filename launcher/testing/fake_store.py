"""What an API server keeps, and what it does on its own.

Versions, uids, history for watches, graceful deletion, garbage collection.
"""

import asyncio
import copy
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from launcher.cluster.errors import AlreadyExists, Conflict, NotFound
from launcher.cluster.port import Json, Kind

Key = tuple[Kind, str | None, str]

COLLECTS_AFTER = 0.1
"""Seconds until the garbage collector acts, as seen on a real cluster."""

DEFAULT_GRACE = 30

_WITH_GENERATION = (Kind.POD, Kind.NETWORK_POLICY, Kind.DEPLOYMENT)


@dataclass(frozen=True)
class Change:
    """One committed write."""

    version: int
    key: Key
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Json


class Store:
    """All objects of a fake cluster. Methods are synchronous and atomic; copies go in and come out."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._objects: dict[Key, Json] = {}
        self._version = 100
        self.history: list[Change] = []
        self.floor = 0
        """Changes up to this version are forgotten: a watch from below is Gone."""
        self.changed = asyncio.Event()

    @property
    def version(self) -> int:
        """The newest resourceVersion."""
        return self._version

    def get(self, key: Key) -> Json | None:
        """Return a copy of one object."""
        return copy.deepcopy(self._objects.get(key))

    def items(self, kind: Kind, namespace: str | None) -> list[Json]:
        """Return copies of all objects of a kind, in every namespace when that is None, by name."""
        found = [(key, body) for key, body in self._objects.items() if key[0] is kind and namespace in (None, key[1])]
        return [copy.deepcopy(body) for _, body in sorted(found, key=lambda item: (item[0][1] or "", item[0][2]))]

    def prepare(self, key: Key, body: Json) -> Json:
        """Return the object as a create would store it, without storing it. Raises AlreadyExists."""
        if key in self._objects:
            raise AlreadyExists(_operation("create", key), status=409, reason="AlreadyExists")
        made = copy.deepcopy(body)
        made.setdefault("apiVersion", key[0].value.api_version)
        made.setdefault("kind", key[0].value.kind)
        metadata = made.setdefault("metadata", {})
        metadata |= {"name": key[2], "uid": str(uuid.uuid4()), "creationTimestamp": stamp(self._now())}
        if key[1] is not None:
            metadata["namespace"] = key[1]
        if key[0] in _WITH_GENERATION:
            metadata["generation"] = 1
        metadata["managedFields"] = [{"manager": "podgate", "operation": "Update"}]
        return made

    def create(self, key: Key, body: Json) -> Json:
        """Store a new object."""
        self._commit("ADDED", key, self.prepare(key, body))
        if self._objects[key]["metadata"].get("ownerReferences"):
            self._collect_later()
        return copy.deepcopy(self._objects[key])

    def replace(self, key: Key, body: Json) -> Json:
        """Replace under uid and resourceVersion, where the body says them."""
        stored = self._objects.get(key)
        operation = _operation("replace", key)
        if stored is None:
            raise NotFound(operation, status=404, reason="NotFound")
        given, held = body.get("metadata", {}), stored["metadata"]
        for field in ("uid", "resourceVersion"):
            if given.get(field) not in (None, held[field]):
                raise Conflict(operation, status=409, reason="Conflict")
        fresh = copy.deepcopy(body)
        kept = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
        fresh["metadata"] = fresh.get("metadata", {}) | {name: held[name] for name in kept if name in held}
        fresh["metadata"] |= {"name": key[2], "resourceVersion": held["resourceVersion"]}
        return self.put(key, fresh)

    def edit(self, key: Key, change: Callable[[Json], None]) -> Json:
        """Let ``change`` alter a copy in place, and store it. What a controller or kubelet does. Raises NotFound."""
        body = self.get(key)
        if body is None:
            raise NotFound(_operation("update", key), status=404, reason="NotFound")
        change(body)
        return self.put(key, body)

    def put(self, key: Key, body: Json) -> Json:
        """Store a changed object; nothing happens when nothing changed.

        The last finalizer's end ends a deleted object.
        """
        if body != self._objects[key]:
            self._commit("MODIFIED", key, copy.deepcopy(body))
        metadata = self._objects[key]["metadata"]
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and self._ends_at_once(key):
            self.remove(key)
            return copy.deepcopy(body)
        return copy.deepcopy(self._objects[key])

    def delete(self, key: Key, *, uid: str | None = None, grace: int | None = None) -> bool:
        """Delete, gracefully where the kind is so. Raises Conflict when the stored uid is another."""
        body = self.get(key)
        if body is None:
            return False
        metadata = body["metadata"]
        if uid is not None and uid != metadata["uid"]:
            raise Conflict(_operation("delete", key), status=409, reason="Conflict")
        seconds = self._grace(key, body, grace)
        if seconds == 0 and not metadata.get("finalizers"):
            self.remove(key)
            return True
        left = metadata.get("deletionGracePeriodSeconds")
        if left is None or seconds < left:
            if left is None and "generation" in metadata:
                metadata["generation"] += 1
            metadata["deletionTimestamp"] = stamp(self._now() + timedelta(seconds=seconds))
            metadata["deletionGracePeriodSeconds"] = seconds
            self._commit("MODIFIED", key, body)
        return True

    def _grace(self, key: Key, body: Json, asked: int | None) -> int:
        if self._ends_at_once(key):
            return 0
        if asked is not None:
            return asked
        return int(body["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE))

    def _ends_at_once(self, key: Key) -> bool:
        """Everything but a pod that a node has: its kubelet has to see the containers end."""
        body = self._objects[key]
        ended = body.get("status", {}).get("phase") in ("Succeeded", "Failed")
        return key[0] is not Kind.POD or not body.get("spec", {}).get("nodeName") or ended

    def remove(self, key: Key) -> None:
        """Take an object away, as after its grace; its dependants follow."""
        body = self._objects.get(key)
        if body is None:
            return
        if key[0] is Kind.NAMESPACE:
            for inside in [other for other in self._objects if other[1] == key[2]]:
                self.remove(inside)
        self._commit("DELETED", key, copy.deepcopy(body))
        self._collect_later()

    def collect(self) -> None:
        """Delete every object that names owners of which none is there any more."""
        uids = {body["metadata"]["uid"] for body in self._objects.values()}
        for key, body in list(self._objects.items()):
            owners = body["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in uids for owner in owners):
                self.delete(key)

    def forget_history(self) -> None:
        """Compact: watches from before now are Gone."""
        self.floor = self._version
        self.history.clear()
        self._wake()

    def _collect_later(self) -> None:
        asyncio.get_running_loop().call_later(COLLECTS_AFTER, self.collect)

    def _commit(self, kind: Literal["ADDED", "MODIFIED", "DELETED"], key: Key, body: Json) -> None:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        if kind == "DELETED":
            del self._objects[key]
        else:
            self._objects[key] = body
        self.history.append(Change(self._version, key, kind, copy.deepcopy(body)))
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def copied(change: Change) -> Change:
    """Return a change whose object may be altered by its reader."""
    return replace(change, object=copy.deepcopy(change.object))


def stamp(at: datetime) -> str:
    """Return a time as the API server spells it: whole seconds."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _operation(verb: str, key: Key) -> str:
    return f"{verb} {key[0].value.kind} {key[2]}"
