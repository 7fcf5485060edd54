"""The strict extraction: files and directories while they come, links at the end, every limit on the way."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from launcher.errors import PodgateError
from launcher.extract.links import Links
from launcher.extract.rules import ENTRY_LIMIT, LINK_BYTES, Seen, shown, split
from launcher.extract.tarstream import Entry, TarStream
from launcher.extract.tree import Tree, refusal

OVERHEAD_BYTES = 2048
"""Per entry, beyond its content: a header, padding, and an extended header of ordinary size."""
MTIME_LIMIT = 1 << 33
"""Seconds; what ustar can say, and every file system can hold."""


@dataclass(frozen=True)
class Limits:
    """``content_bytes`` counts what the headers declare, and bounds what really comes.

    ``seconds`` is the time for all of it.
    """

    content_bytes: int
    seconds: float
    entries: int = ENTRY_LIMIT


class Extraction:
    """One extraction into an empty directory. Blocking: run it in a thread.

    Nothing of it is to be used before ``finish``.
    """

    def __init__(self, root: int, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = _Writer(root, limits)
        self._stream = TarStream(self._writer)
        self._clock = clock
        self._until = clock() + limits.seconds
        self._room = limits.content_bytes + (limits.entries + 1) * OVERHEAD_BYTES

    @property
    def entries(self) -> int:
        """How many entries have been begun."""
        return self._writer.count

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the archive. Raises ``extract_*``, ``collect_failed``."""
        self._check_time()
        self._room -= len(data)
        if self._room < 0:
            raise PodgateError("extract_size_limit", "more bytes than the limits allow")
        self._stream.feed(memoryview(data))

    def finish(self) -> None:
        """Check the end, and make the links; only call it when the digest was right."""
        self._check_time()
        self._stream.finish()
        self._writer.make_links()

    def close(self) -> None:
        """Give descriptors back; once, whatever happened."""
        self._writer.close()

    def _check_time(self) -> None:
        if self._clock() > self._until:
            raise PodgateError("extract_time_limit", "the extraction did not end within its time")


class _Writer:
    """The sink: believes nothing about an entry before it has checked it."""

    def __init__(self, root: int, limits: Limits) -> None:
        self._tree = Tree(root)
        self._limits = limits
        self._room = limits.content_bytes
        self._seen = Seen()
        self._links = Links()
        self._pending: list[tuple[bytes, bytes]] = []
        self._path = b""
        self._fd = -1
        self._mtime = 0
        self.count = 0

    def begin(self, entry: Entry) -> None:
        self._path = entry.path
        self._admit(entry)
        parts = split(entry.path)
        through = self._links.first_above(parts)
        if through is not None:
            raise PodgateError("extract_through_symlink", f"{shown(entry.path)} lies beneath the link {shown(through)}")
        if not self._seen.add(entry.path):
            raise PodgateError(
                "extract_duplicate", f"a second entry, or one that differs only in case: {shown(entry.path)}"
            )
        try:
            self._make(entry, parts)
        except OSError as error:
            raise refusal(error, entry.path) from error

    def write(self, data: memoryview) -> None:
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            raise refusal(error, self._path) from error

    def end(self) -> None:
        if self._fd < 0:
            return
        try:
            os.utime(self._fd, (self._mtime, self._mtime))
        except OSError as error:
            raise refusal(error, self._path) from error
        finally:
            self._close_file()

    def header(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise PodgateError("extract_size_limit", "more bytes of headers than the limits allow")

    def make_links(self) -> None:
        for path, _ in self._pending:
            fault = self._links.fault(path)
            if fault:
                raise PodgateError("extract_symlink_escape", f"the link {shown(path)} {fault}")
        for path, target in self._pending:
            try:
                self._tree.symlink(split(path), target)
            except OSError as error:
                raise refusal(error, path) from error

    def close(self) -> None:
        self._close_file()
        self._tree.close()

    def _admit(self, entry: Entry) -> None:
        self.count += 1
        if self.count > self._limits.entries:
            raise PodgateError("extract_entry_limit", f"more than {self._limits.entries} entries")
        self.header(entry.size)

    def _make(self, entry: Entry, parts: tuple[bytes, ...]) -> None:
        if entry.kind == "directory":
            self._tree.directory(parts)
        elif entry.kind == "file":
            self._fd = self._tree.file(parts, executable=entry.executable)
            self._mtime = min(entry.mtime, MTIME_LIMIT)
        else:
            self._links.add(entry.path, entry.target)
            self._pending.append((entry.path, entry.target))
            if self._links.bytes > LINK_BYTES:
                raise PodgateError("extract_size_limit", "more bytes of links than the limits allow")

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
