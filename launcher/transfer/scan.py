"""Looks at a workspace before anything is created: every entry once, without following a link, within its limits.

The listing is kept as packed records, in memory up to 4 MiB and on disk beyond, so that 100,000 entries cost no
memory while they are sent.
"""

import errno
import os
import stat
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from launcher.errors import PodgateError
from launcher.extract.links import Links
from launcher.extract.rules import ENTRY_LIMIT, LINK_BYTES, Seen, is_utf8, length_fault, shown
from launcher.extract.tree import open_below

LISTING_MEMORY = 4 << 20
DISK_BLOCK = 4096
"""What a file really takes is a multiple of this; the volume's limit counts that, not the content."""
_RECORD = struct.Struct("<cHHqqqq?")
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Listed:
    """One entry as it was seen.

    ``path`` is relative to the workspace; ``inode``, ``size`` and ``mtime_ns`` tell a change.
    """

    kind: bytes
    path: bytes
    target: bytes = b""
    size: int = 0
    mtime_ns: int = 0
    inode: int = 0
    device: int = 0
    executable: bool = False

    def same(self, now: os.stat_result) -> bool:
        """Tell whether a regular file is still what was seen."""
        return stat.S_ISREG(now.st_mode) and (now.st_ino, now.st_size, now.st_mtime_ns) == (
            self.inode,
            self.size,
            self.mtime_ns,
        )


class Listing:
    """The entries of a scan, to be read as often as a transfer is tried."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=LISTING_MEMORY)  # noqa: SIM115  closed by close()
        self.entries = 0
        self.content_bytes = 0
        self.disk_bytes = 0

    def add(self, entry: Listed) -> None:
        """Append one entry."""
        head = _RECORD.pack(
            entry.kind, len(entry.path), len(entry.target), entry.size, entry.mtime_ns,
            entry.inode, entry.device - (1 << 63), entry.executable,
        )  # fmt: skip
        self._file.write(head + entry.path + entry.target)
        self.entries += 1
        self.content_bytes += entry.size
        self.disk_bytes += -(-entry.size // DISK_BLOCK) * DISK_BLOCK + (DISK_BLOCK if entry.kind == b"d" else 0)

    def __iter__(self) -> Iterator[Listed]:
        """Yield the entries in their order: a directory, then its files and links, then its directories' own groups."""
        at = 0
        while True:
            self._file.seek(at)
            chunk = self._file.read(256 << 10)
            if not chunk:
                return
            used = 0
            for entry, end in _unpacked(chunk):
                used = end
                yield entry
            at += used

    def close(self) -> None:
        """Drop the listing."""
        self._file.close()


def _unpacked(chunk: bytes) -> Iterator[tuple[Listed, int]]:
    at = 0
    while at + _RECORD.size <= len(chunk):
        kind, path, target, size, mtime_ns, inode, device, executable = _RECORD.unpack_from(chunk, at)
        body = at + _RECORD.size
        end = body + path + target
        if end > len(chunk):
            return
        names = chunk[body:end]
        yield Listed(kind, names[:path], names[path:], size, mtime_ns, inode, device + (1 << 63), executable), end
        at = end


def scan(root: int, *, disk_bytes: int, entry_limit: int = ENTRY_LIMIT) -> Listing:
    """Look at everything below ``root``.

    Raises ``workspace_invalid``, ``workspace_too_large``, ``workspace_unreadable``, ``workspace_changed``.
    """
    scanner = _Scanner(root, disk_bytes, entry_limit)
    try:
        scanner.run()
    except BaseException:
        scanner.listing.close()
        raise
    return scanner.listing


class _Scanner:
    def __init__(self, root: int, disk_bytes: int, entry_limit: int) -> None:
        self.listing = Listing()
        self._root = root
        self._disk = disk_bytes
        self._entry_limit = entry_limit
        self._seen = Seen()
        self._links = Links()
        self._linked: list[bytes] = []

    def run(self) -> None:
        pending = [b""]
        while pending:
            path = pending.pop()
            pending.extend(reversed(self._directory(path)))
        for path in self._linked:
            fault = self._links.fault(path)
            if fault:
                raise PodgateError("workspace_invalid", f"the symbolic link {shown(path)} {fault}")

    def _directory(self, path: bytes) -> list[bytes]:
        """List one directory; return its directories' paths."""
        try:
            fd = open_below(self._root, tuple(path.split(b"/")) if path else ())
        except OSError as error:
            raise vanished_or_unreadable(error, path) from error
        try:
            now = os.fstat(fd)
            if path:
                self._add(Listed(b"d", path, mtime_ns=now.st_mtime_ns, inode=now.st_ino, device=now.st_dev))
            return self._children(fd, path)
        except OSError as error:
            raise vanished_or_unreadable(error, path) from error
        finally:
            os.close(fd)

    def _children(self, fd: int, path: bytes) -> list[bytes]:
        below: list[bytes] = []
        for name in sorted(self._names(fd)):
            child = path + b"/" + name if path else name
            try:
                if self._entry(fd, name, child):
                    below.append(child)
            except OSError as error:
                raise vanished_or_unreadable(error, child) from error
        return below

    def _names(self, fd: int) -> list[bytes]:
        names: list[bytes] = []
        with os.scandir(fd) as found:
            for entry in found:
                names.append(os.fsencode(entry.name))
                if len(names) + self.listing.entries > self._entry_limit:
                    raise PodgateError("workspace_invalid", f"more than {self._entry_limit} entries")
        return names

    def _entry(self, fd: int, name: bytes, path: bytes) -> bool:
        """Take one entry; True for a directory, which is listed when it is opened."""
        now = os.stat(name, dir_fd=fd, follow_symlinks=False)
        self._check_name(path)
        if stat.S_ISDIR(now.st_mode):
            return True
        if stat.S_ISLNK(now.st_mode):
            self._link(path, os.readlink(name, dir_fd=fd), now)
        elif stat.S_ISREG(now.st_mode):
            self._check_readable(fd, name, path, now)
            executable = bool(now.st_mode & 0o100)
            self._add(Listed(b"f", path, b"", now.st_size, now.st_mtime_ns, now.st_ino, now.st_dev, executable))
        else:
            raise PodgateError("workspace_invalid", f"a device, fifo or socket: {shown(path)}")
        return False

    def _check_name(self, path: bytes) -> None:
        fault = length_fault(tuple(path.split(b"/")))
        if fault is None and not is_utf8(path):
            fault = "a name that is not UTF-8"
        if fault is None and not self._seen.add(path):
            fault = "two names that differ only in case"
        if fault:
            raise PodgateError("workspace_invalid", f"{fault}: {shown(path)}")

    def _check_readable(self, fd: int, name: bytes, path: bytes, now: os.stat_result) -> None:
        """Refuse early what could not be read later. Asking is cheaper than opening 20,000 files twice."""
        if not now.st_mode & 0o444 or not os.access(name, os.R_OK, dir_fd=fd, effective_ids=True):
            raise PodgateError("workspace_unreadable", f"no permission to read {shown(path)}")

    def _link(self, path: bytes, target: bytes, now: os.stat_result) -> None:
        self._links.add(path, target)
        self._linked.append(path)
        if not is_utf8(target) or self._links.bytes > LINK_BYTES:
            raise PodgateError("workspace_invalid", f"a symbolic link that cannot be sent: {shown(path)}")
        self._add(Listed(b"l", path, target, 0, now.st_mtime_ns, now.st_ino, now.st_dev))

    def _add(self, entry: Listed) -> None:
        self.listing.add(entry)
        if self.listing.disk_bytes > self._disk:
            raise PodgateError(
                "workspace_too_large", f"the workspace takes more than diskMb = {self._disk >> 20} MiB on disk"
            )


def vanished_or_unreadable(error: OSError, path: bytes) -> PodgateError:
    """Return what an error while reading the workspace means, with the entry's name and nothing else."""
    place = shown(path) if path else "the workspace itself"
    if isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno in {
        errno.ELOOP,
        errno.ENXIO,
    }:  # a link, or a socket, stands there now
        return PodgateError("workspace_changed", f"vanished or was replaced while it was read: {place}")
    return PodgateError("workspace_unreadable", f"{os.strerror(error.errno or 0)}: {place}")
