"""Execs of a fake cluster: a handler plays the process, two bounded pipes play the websocket."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from launcher.cluster.errors import ExecFailed
from launcher.cluster.port import ExecStatus

PIPE_BYTES = 1 << 20
"""What a direction holds before its writer waits. A real path holds 14 to 18 MB; less finds more mistakes."""

STDERR_KEPT = 4 << 10


class Cut(Exception):
    """The other side is gone."""


class Pipe:
    """Bytes from one task to another, in the pieces they were written in, with back-pressure."""

    def __init__(self, limit: int = PIPE_BYTES) -> None:
        self._limit = limit
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._broken = False
        self._moved = asyncio.Condition()

    async def write(self, data: bytes) -> None:
        """Wait for room and write. Raises Cut when nobody will read."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._size < self._limit or self._broken)
            if self._broken or self._ended:
                raise Cut
            self._pieces.append(bytes(data))
            self._size += len(data)
            self._moved.notify_all()

    async def read(self) -> bytes | None:
        """Return the next piece; None at the end."""
        async with self._moved:
            await self._moved.wait_for(lambda: bool(self._pieces) or self._ended or self._broken)
            if not self._pieces or self._broken:
                return None
            piece = self._pieces.popleft()
            self._size -= len(piece)
            self._moved.notify_all()
            return piece

    async def end(self, *, broken: bool = False) -> None:
        """Let the reader see the end after what is there; ``broken`` drops that and wakes the writer, too."""
        async with self._moved:
            self._ended = True
            self._broken = self._broken or broken
            self._moved.notify_all()


@dataclass(frozen=True)
class Process:
    """What a handler sees: where it runs, what it was told, and its three streams."""

    namespace: str
    pod: str
    container: str
    argv: Sequence[str]
    stdin: Pipe
    stdout: Pipe
    stderr: bytearray

    async def exactly(self, length: int, rest: bytes = b"") -> tuple[bytes, bytes]:
        """Read ``length`` bytes of stdin, beginning with ``rest``; returns them and what came beyond. Raises Cut."""
        body = bytearray(rest)
        while len(body) < length:
            piece = await self.stdin.read()
            if piece is None:
                raise Cut
            body += piece
        return bytes(body[:length]), bytes(body[length:])


Handler = Callable[[Process], Awaitable[int]]
"""Plays one process; returns its exit code. Raises Cut when a stream broke under it."""


class FakeExec:
    """Implements ExecStream over a handler that runs as a task."""

    def __init__(self, operation: str, process: Process, handler: Handler | None) -> None:
        self._operation = operation
        self._process = process
        self._status: ExecStatus | None = None
        self._lost = False
        self._task = asyncio.create_task(self._run(handler)) if handler else None

    async def _run(self, handler: Handler) -> None:
        code: int | None = None
        try:
            code = await handler(self._process)
        except Cut:
            self._lost = True
        finally:
            if code is not None:
                self._status = _ended(code)
            await self._process.stdout.end(broken=self._lost)
            await self._process.stdin.end(broken=True)

    def cut(self) -> None:
        """Break the connection in the middle, as an API server that is killed would."""
        self._lost = True
        if self._task is not None:
            self._task.cancel()

    @property
    def process(self) -> Process:
        """Where it runs and what."""
        return self._process

    async def send(self, data: bytes) -> None:
        """Write to stdin, at most 128 KiB a call."""
        if len(data) > 128 << 10:
            raise ValueError("at most 128 KiB a call")
        if self._task is None:
            raise self._not_there()
        try:
            await self._process.stdin.write(data)
        except Cut:
            raise ExecFailed(self._operation, reason="ConnectionReset", started=True) from None

    async def close_stdin(self) -> None:
        """Half-close."""
        await self._process.stdin.end()

    async def receive(self) -> bytes | None:
        """Return the next piece of stdout; None at the end."""
        if self._task is None:
            raise self._not_there()
        return await self._process.stdout.read()

    @property
    def stderr(self) -> bytes:
        """The last 4 KiB of stderr."""
        return bytes(self._process.stderr[-STDERR_KEPT:])

    @property
    def status(self) -> ExecStatus | None:
        """How it ended; None while it runs or when it was cut."""
        return self._status

    async def abort(self) -> None:
        """End both directions and the handler."""
        await self._process.stdin.end()
        await self._process.stdout.end(broken=True)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _not_there(self) -> ExecFailed:
        return ExecFailed(self._operation, status=500, reason="InternalError", started=False)


def _ended(code: int) -> ExecStatus:
    if code == 0:
        return ExecStatus(success=True, exit_code=0)
    return ExecStatus(success=False, exit_code=code, reason="NonZeroExitCode")


@asynccontextmanager
async def opened(operation: str, process: Process, handler: Handler | None) -> AsyncIterator[FakeExec]:
    """Run a handler as a process; None stands for a container that does not run, which shows at the first use."""
    stream = FakeExec(operation, process, handler)
    try:
        yield stream
    finally:
        await stream.abort()
