"""The exec programs of a fake pod, speaking the protocol of ``isolation/inpod``: follow, receive, send."""

import asyncio
import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from isolation.inpod import ProgramName, source
from launcher.cluster.port import Json
from launcher.testing.fake_exec import Cut, Handler, Process
from launcher.testing.fake_prover import FakeProver
from launcher.testing.fake_script import Moment, Script

ACKNOWLEDGED = 4 << 20
FRAME = 256 << 10
LOOKS_EVERY = 0.1
DIGEST = 32
EXECUTED: tuple[ProgramName, ...] = ("follow", "receive", "send")


@dataclass
class Storage:
    """What a run's volume holds: the highest epoch, who receives, and what is in place."""

    epoch: int = 0
    receiver: object = None
    seed: Json | None = None
    archive: bytes = b""
    cuts: int = 0


class Inside(Protocol):
    """What the programs see of their pod."""

    script: Script
    storage: Storage
    prover: FakeProver | None

    @property
    def gate_runs(self) -> bool:
        """Whether the gate has not ended yet."""

    def take_marker(self, marker: Json) -> None:
        """Put the marker where the gate looks."""

    def reach(self, moment: Moment) -> None:
        """Note that a moment of the pod's life has come."""


def handler_for(process: Process, pod: Inside) -> Handler | None:
    """Return what plays the process that an exec asks for; None when there is no such program."""
    programs: Mapping[str, Callable[[Process, Inside, Json], Any]] = {
        "follow": follow,
        "receive": receive,
        "send": send,
    }
    for name in EXECUTED:
        if source(name) in process.argv:
            return partial(_play, programs[name], pod, json.loads(process.argv[-1]))
    return None


async def _play(program: Callable[[Process, Inside, Json], Any], pod: Inside, config: Json, process: Process) -> int:
    code: int = await program(process, pod, config)
    return code


async def say(process: Process, line: Json) -> None:
    """Write one JSON line to stdout."""
    await process.stdout.write(json.dumps(line).encode() + b"\n")


@dataclass
class _Lines:
    process: Process
    rest: bytes = b""
    found: list[bytes] = field(default_factory=list)

    async def next(self) -> bytes | None:
        """Return the next line of stdin, None at its end."""
        while not self.found:
            piece = await self.process.stdin.read()
            if piece is None:
                return None
            *self.found, self.rest = (self.rest + piece).split(b"\n")
        return self.found.pop(0)


async def follow(process: Process, pod: Inside, _config: Json) -> int:
    """Tell the prover's state whenever a round more has ended, and take the marker."""
    telling = asyncio.create_task(_tell(process, pod))
    lines = _Lines(process)
    try:
        while (line := await _next_or_end(lines, telling)) is not None:
            if line.strip():
                pod.take_marker(json.loads(line))
                await say(process, {"marker": "written"})
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
    return 0


async def _next_or_end(lines: _Lines, telling: "asyncio.Task[None]") -> bytes | None:
    reading = asyncio.create_task(lines.next())
    try:
        await asyncio.wait({reading, telling}, return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() else None
    finally:
        reading.cancel()


async def _tell(process: Process, pod: Inside) -> None:
    """Until the gate has ended: its container's end ends the exec."""
    seen: object = None
    while pod.gate_runs:
        if pod.prover is None:
            await say(process, {"waiting": "connection refused"})
            await asyncio.sleep(1)
            continue
        state = pod.prover.state()
        news = (state["startId"], state["rounds"], state["verdict"], state["released"])
        if news != seen:
            seen = news
            await say(process, state)
        await asyncio.sleep(LOOKS_EVERY)


async def receive(process: Process, pod: Inside, config: Json) -> int:
    """Take one archive by count, and put it in place when all of it came."""
    me, storage = object(), pod.storage
    if config["epoch"] < storage.epoch:
        return await _refuse(process, "launch_superseded", "a receiver of a newer epoch took over")
    storage.epoch, storage.receiver = config["epoch"], me
    head, rest = await process.exactly(8)
    pod.reach("seed_begun")
    length = int.from_bytes(head, "big")
    archive = await _archive(process, pod, length, rest, me)
    if archive is None:
        return await _refuse(process, "launch_superseded", "a receiver of a newer epoch took over")
    body, digest = archive
    found = hashlib.sha256(body).digest()
    if found != digest:
        await say(
            process, {"ok": False, "code": "seed_failed", "message": "the archive's digest is wrong", "cut": True}
        )
        return 1
    with tarfile.open(fileobj=io.BytesIO(body)) as opened:
        entries = len(opened.getnames())
    said = {"bytes": length, "sha256": found.hex(), "entries": entries}
    storage.seed, storage.archive = {"epoch": config["epoch"], **said}, body
    pod.reach("seeded")
    await say(process, {"ok": True, **said})
    return 0


async def _archive(process: Process, pod: Inside, length: int, rest: bytes, me: object) -> tuple[bytes, bytes] | None:
    """Read archive and digest, with acknowledgements; None when another receiver took over."""
    body, told = bytearray(rest), 0
    limit = pod.script.seed_cut_after if pod.storage.cuts < pod.script.seed_cuts else None
    while len(body) < length + DIGEST:
        piece = await process.stdin.read()
        if piece is None:
            raise Cut
        body += piece
        if pod.storage.receiver is not me:
            return None
        if limit is not None and len(body) >= limit:
            pod.storage.cuts += 1
            raise Cut
        if len(body) - told >= ACKNOWLEDGED:
            told = len(body)
            await say(process, {"received": told})
    return bytes(body[:length]), bytes(body[length : length + DIGEST])


async def _refuse(process: Process, code: str, message: str) -> int:
    await say(process, {"ok": False, "code": code, "message": message})
    while await process.stdin.read() is not None:
        pass
    return 1


async def send(process: Process, pod: Inside, config: Json) -> int:
    """Send the result's line, or the workspace in frames."""
    if config["what"] == "result":
        await say(process, _result(pod.script.worker.result, config["maxBytes"]))
        return 0
    await say(process, {"ok": True})
    body, entries = workspace_archive(pod)
    for at in range(0, len(body), FRAME):
        frame = body[at : at + FRAME]
        await process.stdout.write(len(frame).to_bytes(4, "big") + frame)
    await process.stdout.write(bytes(4))
    excluded = list(pod.script.worker.excluded)
    said = {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest(), "entries": entries}
    await say(process, {"ok": True, **said, "excluded": excluded, "dropped": len(excluded)})
    return 0


def _result(content: bytes | None, limit: int) -> Json:
    if content is None:
        return {"ok": True, "present": False, "bytes": 0, "sha256": hashlib.sha256().hexdigest(), "content": ""}
    said: Json = {"ok": True, "present": True, "bytes": len(content)}
    if len(content) > limit:
        return said
    digest = hashlib.sha256(content).hexdigest()
    return said | {"sha256": digest, "content": base64.b64encode(content).decode()}


def workspace_archive(pod: Inside) -> tuple[bytes, int]:
    """Return the workspace as the worker left it, as an archive with its number of entries.

    It ends with the two blocks that end an archive, as the real sender's; Python's own would be padded beyond them.
    """
    files = pod.script.worker.files
    made, count = io.BytesIO(), 0
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in seeded(pod.storage.archive).items() if files is None else files.items():
            for above in _directories(name, archive):
                archive.addfile(_entry(above, 0, tarfile.DIRTYPE, 0o755))
                count += 1
            archive.addfile(_entry(name, len(content), tarfile.REGTYPE, 0o644), io.BytesIO(content))
            count += 1
        end = archive.offset + 2 * tarfile.BLOCKSIZE
    return made.getvalue()[:end], count


def _directories(name: str, archive: tarfile.TarFile) -> list[str]:
    parts = name.split("/")[:-1]
    paths = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    present = set(archive.getnames())
    return [path for path in paths if path not in present]


def _entry(name: str, size: int, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type, entry.mode = size, kind, mode
    return entry


def seeded(archive: bytes, area: str = "workspace") -> dict[str, bytes]:
    """Return the regular files of an area of a seed, by path relative to it."""
    if not archive:
        return {}
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as seed:
        for entry in seed.getmembers():
            file = seed.extractfile(entry) if entry.isreg() else None
            if file is not None and entry.name.startswith(f"{area}/"):
                found[entry.name.removeprefix(f"{area}/")] = file.read()
    return found
