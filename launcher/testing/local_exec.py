"""Execs without a cluster: in-pod programs run as local processes on a directory that stands in for the run's storage.

For tests of transfers. The programs, their pipes and their disk are real; only the API server between is missing, and
its faults can be ordered: a refused start, a cut after so many bytes in either direction, damage, silence.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from launcher.cluster.errors import ExecFailed
from launcher.cluster.port import ExecStatus, ExecStream

STORAGE = "/run/podgate"
PIECE_BYTES = 64 << 10


@dataclass
class Faults:
    """What goes wrong with one exec. Byte counts are of stdin (``cut_sent``) and stdout (``cut_received``)."""

    refuse: bool = False
    cut_sent: int | None = None
    cut_received: int | None = None
    mute_after: int | None = None
    change: Callable[[int, bytes], bytes] = lambda _at, piece: piece


@dataclass
class LocalPod:
    """One pod's storage, and the faults of its coming execs, in their order."""

    storage: Path
    faults: list[Faults] = field(default_factory=list)
    execs: list[str] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    python: Sequence[str] = (sys.executable,)
    substitute: Callable[[list[str]], list[str]] = lambda argv: argv

    def exec(
        self, namespace: str, pod: str, container: str, argv: Sequence[str]
    ) -> AbstractAsyncContextManager[ExecStream]:
        """Run argv here, with its storage replaced by this pod's."""
        self.execs.append(f"{namespace}/{pod}/{container}")
        return self._exec(argv)

    @asynccontextmanager
    async def _exec(self, argv: Sequence[str]) -> AsyncIterator[ExecStream]:
        faults = self.faults.pop(0) if self.faults else Faults()
        if faults.refuse:
            raise ExecFailed("exec", status=500, reason="container not found", started=False)
        process = await asyncio.create_subprocess_exec(
            *self._local(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.began.set()
        stream = LocalStream(process, faults)
        try:
            yield stream
        finally:
            await stream.abort()

    def _local(self, argv: Sequence[str]) -> list[str]:
        config = json.loads(argv[-1])
        config["root"] = config["root"].replace(STORAGE, str(self.storage), 1)
        return self.substitute([*self.python, *argv[1:-1], json.dumps(config)])


class LocalStream:
    """An ExecStream over a process's pipes. Leaving it closes the pipes and waits for the process's own end."""

    def __init__(self, process: asyncio.subprocess.Process, faults: Faults) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("a process without pipes")
        self._process = process
        self._in, self._out = process.stdin, process.stdout
        self._errors = asyncio.ensure_future(process.stderr.read())
        self._faults = faults
        self._sent = self._received = 0
        self._cut = False

    async def send(self, data: bytes) -> None:
        """Write to stdin; a cut raises as a broken websocket does."""
        limit = self._faults.cut_sent
        if limit is not None and self._sent + len(data) > limit:
            self._in.write(data[: limit - self._sent])
            self._break()
        if self._cut:
            raise ExecFailed("exec", reason="cut", started=True)
        self._sent += len(data)
        self._in.write(data)
        try:
            await self._in.drain()
        except ConnectionError as error:
            raise ExecFailed("exec", reason="closed", started=True) from error

    def _break(self) -> None:
        self._cut = True
        self._in.close()

    async def close_stdin(self) -> None:
        """Half-close."""
        self._in.close()

    async def receive(self) -> bytes | None:
        """Read stdout, with the ordered faults."""
        room = PIECE_BYTES
        if self._faults.mute_after is not None:
            room = min(room, self._faults.mute_after - self._received)
        if room <= 0:
            await asyncio.Event().wait()
        piece = await self._out.read(room)
        limit = self._faults.cut_received
        if limit is not None:
            piece = piece[: max(0, limit - self._received)]
        piece = self._faults.change(self._received, piece)
        self._received += len(piece)
        return piece or None

    @property
    def stderr(self) -> bytes:
        """What the process wrote there, once it has ended."""
        done = self._errors.done() and not self._errors.cancelled()
        return self._errors.result()[-4096:] if done else b""

    @property
    def status(self) -> ExecStatus | None:
        """The exit code, once there is one."""
        code = self._process.returncode
        return None if code is None else ExecStatus(success=code == 0, exit_code=code)

    async def abort(self) -> None:
        """End both directions; a program that does not end by itself then is a fault, and the wait shows it."""
        self._in.close()
        drained = asyncio.ensure_future(self._drain())
        await self._process.wait()
        await drained
        await self._errors

    async def _drain(self) -> None:
        while await self._out.read(PIECE_BYTES):
            pass
