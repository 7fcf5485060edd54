"""Container logs of a fake cluster: lines with times, read and followed as the kubelet serves them."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import datetime


@dataclass
class Log:
    """One container's log. ``ended`` ends the followers."""

    lines: list[tuple[datetime, bytes]] = field(default_factory=list)
    ended: bool = False
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, at: datetime, line: bytes) -> None:
        """Add one line, without its newline."""
        self.lines.append((at, line))
        self._wake()

    def end(self) -> None:
        """The container has ended: what is there is all."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self.grown.set()
        self.grown = asyncio.Event()


@dataclass(frozen=True)
class Reading:
    """What a reader asked for."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: datetime | None = None

    async def of(self, log: Log) -> AsyncGenerator[bytes, None]:
        """Yield the log line by line; with ``follow`` until the container has ended."""
        left, position = self.limit_bytes, self._first(log)
        while True:
            while position < len(log.lines):
                piece = self._spelled(*log.lines[position])[:left]
                position += 1
                left = None if left is None else left - len(piece)
                if piece:
                    yield piece
                if left == 0:
                    return
            if log.ended or not self.follow:
                return
            await log.grown.wait()

    def _first(self, log: Log) -> int:
        position = 0 if self.tail_lines is None else max(0, len(log.lines) - self.tail_lines)
        if self.since is not None:
            since = self.since.replace(microsecond=0)
            while position < len(log.lines) and log.lines[position][0] < since:
                position += 1
        return position

    def _spelled(self, at: datetime, line: bytes) -> bytes:
        text = line + b"\n"
        return at.strftime("%Y-%m-%dT%H:%M:%S.%f000Z ").encode() + text if self.timestamps else text
