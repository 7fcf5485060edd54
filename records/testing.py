"""ConfigMaps in memory, with a compare-and-swap that is as strict as the server's and faults to order. For tests."""

import asyncio
import copy
from collections import deque
from typing import Literal

from records.errors import NameTaken, NotThere, OutcomeUnknown, Stale
from records.ports import Json

Fault = Literal["none", "stale", "lost-before", "lost-after"]


class MemoryConfigMaps:
    """Implements :class:`records.ports.ConfigMapsPort`.

    ``faults`` are met by the coming writes, one each: ``stale`` is refused; the answer of ``lost-before`` and of
    ``lost-after`` is lost before or after the write was carried out. Each call lets other tasks run first, so that
    writers really race.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.faults: deque[Fault] = deque()
        self.calls: list[str] = []
        self._version = 0

    async def get(self, name: str) -> Json | None:
        """Read one."""
        await self._arrive("get")
        return copy.deepcopy(self.objects.get(name))

    async def create(self, body: Json) -> Json:
        """Create with a uid of its own."""
        await self._arrive("create")
        name = str(body["metadata"]["name"])
        fault = self._fault(name)
        if name in self.objects:
            raise NameTaken(name)
        stored = self._store(name, body, uid=f"uid-{self._version + 1}")
        return self._answer(stored, name, fault)

    async def replace(self, name: str, body: Json) -> Json:
        """Replace under resourceVersion and uid."""
        await self._arrive("replace")
        fault = self._fault(name)
        there = self.objects.get(name)
        if there is None:
            raise NotThere(name)
        if any(there["metadata"][key] != body["metadata"][key] for key in ("resourceVersion", "uid")):
            raise Stale(name)
        return self._answer(self._store(name, body, uid=there["metadata"]["uid"]), name, fault)

    async def delete(self, name: str, *, uid: str) -> bool:
        """Delete by uid."""
        await self._arrive("delete")
        self._fault(name)
        there = self.objects.get(name)
        if there is not None and there["metadata"]["uid"] != uid:
            raise Stale(name)
        return self.objects.pop(name, None) is not None

    async def _arrive(self, call: str) -> None:
        self.calls.append(call)
        await asyncio.sleep(0)

    def _fault(self, name: str) -> Fault:
        fault: Fault = self.faults.popleft() if self.faults else "none"
        if fault == "stale":
            raise Stale(name)
        if fault == "lost-before":
            raise OutcomeUnknown(name)
        return fault

    def _store(self, name: str, body: Json, *, uid: str) -> Json:
        self._version += 1
        stored = copy.deepcopy(body)
        stored["metadata"] |= {"uid": uid, "resourceVersion": str(self._version)}
        self.objects[name] = stored
        return stored

    def _answer(self, stored: Json, name: str, fault: Fault) -> Json:
        if fault == "lost-after":
            raise OutcomeUnknown(name)
        return copy.deepcopy(stored)


async def no_pause(_seconds: float) -> None:
    """Back off without waiting, and let the other tasks run."""
    await asyncio.sleep(0)
