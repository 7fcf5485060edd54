"""Receives a run's seed in the gate, and puts it in place only when all of it has arrived.

Exec: ``python3 -I -S -c <this> <config>`` with ``{"epoch", "maxBytes", "maxEntries", "root"}``; the package's
docstring has the protocol. One buffer of 1 MiB is all the memory a transfer takes. Nothing is followed: directories
are opened part by part without following links, files are made exclusively, so an entry can neither leave its
directory nor replace another.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Tuple

BLOCK = 512
BUFFER_BYTES = 1 << 20
ACK_BYTES = 4 << 20
ACK_SECONDS = 2.0
POLITE_SECONDS = 1.0
END_SECONDS = 10.0
TRAILER = 32
EXTENDED_LIMIT = 64 << 10
HEADER = {b"0": "file", b"5": "directory", b"2": "symlink"}
AREAS = (b"workspace", b"input", b"output")
MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
LOOK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """What arrived is not taken. ``code`` is the launcher's own."""

    def __init__(self, message: str, code: str = "seed_failed") -> None:
        super().__init__(message)
        self.code = code


def say(**line: Any) -> None:
    """Write one JSON line to stdout, whole."""
    os.write(1, json.dumps(line).encode() + b"\n")


class Cut(Refused):
    """The stream broke, or was damaged, on its way: the same seed may arrive at the next try."""


class Source:
    """Stdin by count: a section is opened with its length, and nothing beyond it is ever read."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(BUFFER_BYTES))
        self.start = self.end = self.left = self.behind = self.received = self.said = 0
        self.said_at = time.monotonic()
        self.digest = hashlib.sha256()

    def section(self, length: int, behind: int = 0) -> None:
        """Begin to read the next ``length`` bytes, with a digest of their own; ``behind`` more will come after them."""
        self.left, self.behind, self.received, self.said = length, behind, 0, 0
        self.digest = hashlib.sha256()

    def refill(self) -> None:
        """Read once; an end of stdin inside a section is a cut."""
        if not self.left:
            raise Refused("the archive goes beyond its own length")
        got = os.readv(0, [self.view[: min(self.left, BUFFER_BYTES)]])
        if not got:
            raise Cut("the stream ended early")
        self.left -= got
        self.received += got
        self.digest.update(self.view[:got])
        self.start, self.end = 0, got
        self.acknowledge()

    def acknowledge(self) -> None:
        """Tell the sender how far we are: often enough for a deadline, seldom enough to cost nothing."""
        now = time.monotonic()
        if self.received - self.said >= ACK_BYTES or now - self.said_at >= ACK_SECONDS:
            self.said, self.said_at = self.received, now
            say(received=self.received)

    def some(self, limit: int) -> memoryview:
        """Return a view of 1 to ``limit`` bytes; valid until the next call."""
        if self.start == self.end:
            self.refill()
        stop = min(self.end, self.start + limit)
        piece = self.view[self.start : stop]
        self.start = stop
        return piece

    def exactly(self, length: int) -> bytes:
        """Return ``length`` bytes as a value of their own; only for short things."""
        parts = bytearray()
        while len(parts) < length:
            parts += self.some(length - len(parts))
        return bytes(parts)

    def drain(self) -> None:
        """Swallow the rest: a process that leaves much of its stdin unread makes the exec hang."""
        left = self.left + self.behind
        while left > 0:
            got = os.readv(0, [self.view[: min(left, BUFFER_BYTES)]])
            if not got:
                return
            left -= got


def octal(field: bytes) -> int:
    """Return the number of a header field; base-256 and rubbish are refused."""
    digits = field.split(b"\0", 1)[0].strip()
    if not digits:
        return 0
    if digits.strip(b"01234567"):
        raise Refused("a header with a bad number")
    return int(digits, 8)


def text(field: bytes) -> bytes:
    """Return a string field up to its first NUL."""
    return field.split(b"\0", 1)[0]


def padded(size: int) -> int:
    """Return how far the next header is behind ``size`` bytes of content."""
    return -(-size // BLOCK) * BLOCK


def extended(body: bytes) -> Dict[bytes, bytes]:
    """Return the records of an extended header, bytes to bytes."""
    found = {}
    while body and body[0]:
        length, _, _ = body.partition(b" ")
        if not length.isdigit() or not len(length) < int(length) <= len(body):
            raise Refused("a damaged extended header")
        key, equals, value = body[len(length) + 1 : int(length)].partition(b"=")
        if not equals or value[-1:] != b"\n":
            raise Refused("a damaged extended header")
        found[key] = value[:-1]
        body = body[int(length) :]
    return found


def checked(block: bytes) -> bytes:
    """Refuse a header whose checksum is wrong."""
    if octal(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * 32:
        raise Refused("a damaged header")
    return block


def entries(source: Source) -> Iterator[Tuple[str, bytes, int, int, int, bytes]]:
    """Yield (kind, path, mode, size, mtime, target); the caller reads the content before it goes on."""
    more: Dict[bytes, bytes] = {}
    while True:
        block = source.exactly(BLOCK)
        if not block.strip(b"\0"):
            break
        size, flag = octal(checked(block)[124:136]), block[156:157]
        if flag == b"x" and not more and size <= EXTENDED_LIMIT:
            more = extended(source.exactly(padded(size))[:size])
            continue
        if flag not in HEADER or text(block[345:500]):
            raise Refused("an entry of a kind that is never sent")
        path = more.get(b"path", text(block[:100]))
        target = more.get(b"linkpath", text(block[157:257]))
        yield HEADER[flag], path, octal(block[100:108]), int(more.get(b"size", size)), octal(block[136:148]), target
        more = {}
    while source.left or source.start < source.end:
        if bytes(source.some(BUFFER_BYTES)).strip(b"\0"):
            raise Refused("bytes behind the archive's end")


def split(path: bytes) -> List[bytes]:
    """Return a path's parts; refuse what could lead anywhere but down."""
    parts = path.rstrip(b"/").split(b"/")
    if any(part in (b"", b".", b"..") for part in parts) or parts[0] not in AREAS[:2]:
        raise Refused("a path that may not be: %r" % path[:200])
    return parts


def inside(parts: List[bytes], target: bytes) -> bool:
    """Tell whether a link's text stays below its area, read as text."""
    depth = len(parts) - 2
    for part in target.split(b"/"):
        depth += -1 if part == b".." else 0 if part in (b"", b".") else 1
        if depth < 0:
            return False
    return bool(target) and not target.startswith(b"/")


class Tree:
    """Makes entries below one directory. Holds two descriptors: the root and the directory last used."""

    def __init__(self, root: str) -> None:
        self.root = os.open(root, LOOK)
        self.at: List[bytes] = []
        self.fd = os.dup(self.root)

    def directory(self, parts: List[bytes]) -> int:
        """Return a descriptor of an existing directory, reached without following anything."""
        if parts != self.at:
            fd = os.dup(self.root)
            for part in parts:
                below = os.open(part, LOOK, dir_fd=fd)
                os.close(fd)
                fd = below
            os.close(self.fd)
            self.at, self.fd = parts, fd
        return self.fd

    def make(self, entry: Tuple[str, bytes, int, int, int, bytes], source: Source) -> None:
        """Make one entry, and read its content."""
        kind, path, mode, size, mtime, target = entry
        parts = split(path)
        above = self.directory(parts[:-1])
        if kind == "directory":
            if len(parts) > 1:  # the areas themselves are there, 2770
                os.mkdir(parts[-1], 0o755, dir_fd=above)
        elif kind == "symlink":
            if not inside(parts, target):
                raise Refused("a link that leads outside: %r" % path[:200])
            os.symlink(target, parts[-1], dir_fd=above)
        else:
            fd = os.open(parts[-1], MAKE, 0o755 if mode & 0o100 else 0o644, dir_fd=above)
            try:
                fill(fd, size, source)
                os.utime(fd, (mtime, mtime))
            finally:
                os.close(fd)


def fill(fd: int, size: int, source: Source) -> None:
    """Write one file's content from the stream."""
    while size:
        piece = source.some(size)
        size -= len(piece)
        while len(piece):
            piece = piece[os.write(fd, piece) :]


def extract(config: Dict[str, Any], source: Source, root: str) -> int:
    """Make every entry below ``root``; return how many there were. Limits are checked before anything is written."""
    tree, count, room = Tree(root), 0, config["maxBytes"]
    for entry in entries(source):
        kind, path, size = entry[0], entry[1], entry[3]
        count += 1
        room -= size
        if count > config["maxEntries"] or room < 0 or (size and kind != "file"):
            raise Refused("more than the limits allow at %r" % path[:200])
        try:
            tree.make(entry, source)
        except OSError as error:
            raise Refused("%r: %s" % (path[:200], os.strerror(error.errno or errno.EIO))) from error
        pad = padded(size) - size
        if pad:
            source.exactly(pad)
    return count


def locked(path: str, flags: int = fcntl.LOCK_EX) -> int:
    """Open and lock a file; the lock goes with the descriptor."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, flags)
    except OSError:
        os.close(fd)
        raise
    return fd


def superseded(_number: int, _frame: object) -> None:
    """End at once: a receiver of a newer epoch asked for it. It holds the lock, so no rename of ours is under way."""
    say(ok=False, code="launch_superseded", message="a receiver of a newer epoch took over")
    os._exit(1)


def alone(root: str) -> int:
    """End every other receiver and hold the file that says who receives. Called under the lock."""
    path = os.path.join(root, ".receiver")
    started = time.monotonic()
    while True:
        try:
            fd = locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - started
            if waited > END_SECONDS:
                raise Refused("another receiver does not end") from None
            end_holder(path, signal.SIGTERM if waited < POLITE_SECONDS else signal.SIGKILL)
            time.sleep(0.02)
        else:
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d" % os.getpid(), 0)
            return fd


def end_holder(path: str, how: int) -> None:
    """Signal the process that holds the file.

    It wrote its number under the lock that we hold now, so it is the right one.
    """
    with open(path, "rb") as file:
        holder = file.read(20)
    if holder.isdigit():
        try:
            os.kill(int(holder), how)
        except ProcessLookupError:
            pass


def seen(root: str) -> int:
    """Return the highest epoch that any receiver had."""
    try:
        with open(os.path.join(root, ".epoch"), "rb") as file:
            return int(file.read(20) or b"0")
    except FileNotFoundError:
        return 0


def replace(path: str, body: bytes) -> None:
    """Write a small file whole, or leave what was there."""
    made = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    with open(made, "wb") as file:
        file.write(body)
    os.rename(path + ".new", path)


def clear(path: str) -> None:
    """Remove a tree without following anything."""
    try:
        for _, directories, files, fd in os.fwalk(path, topdown=False):
            for name in files:
                os.unlink(name, dir_fd=fd)
            for name in directories:
                try:
                    os.rmdir(name, dir_fd=fd)
                except NotADirectoryError:
                    os.unlink(name, dir_fd=fd)
        os.rmdir(path)
    except FileNotFoundError:
        pass


def begin(config: Dict[str, Any]) -> Tuple[str, int]:
    """Take over under the lock: fence lower epochs, end their receivers, make a clean directory.

    Return it, and the held file.
    """
    root, epoch = config["root"], config["epoch"]
    lock = locked(os.path.join(root, ".lock"))
    try:
        if epoch < seen(root):
            raise Refused("a receiver of a newer epoch was here", "launch_superseded")
        replace(os.path.join(root, ".epoch"), b"%d" % epoch)
        held = alone(root)
        for name in os.listdir(root):
            if name.startswith("seed-"):
                clear(os.path.join(root, name))
        mine = os.path.join(root, "seed-%d" % epoch)
        os.mkdir(mine, 0o755)
        for area in AREAS:
            os.mkdir(os.path.join(os.fsencode(mine), area))
            os.chmod(os.path.join(os.fsencode(mine), area), 0o2770)  # noqa: S103  worker and group, nobody else
        return mine, held
    finally:
        os.close(lock)


def place(config: Dict[str, Any], mine: str) -> None:
    """Put the seed in place by rename, unless a newer epoch has begun meanwhile."""
    root = config["root"]
    lock = locked(os.path.join(root, ".lock"))
    try:
        if seen(root) != config["epoch"]:
            raise Refused("a receiver of a newer epoch took over", "launch_superseded")
        current, old = os.path.join(root, "current"), os.path.join(root, "seed-old")
        clear(old)
        try:
            os.rename(current, old)
        except FileNotFoundError:
            pass
        os.rename(mine, current)
    finally:
        os.close(lock)
    try:
        clear(old)
    except OSError:
        pass  # it is in nobody's way, and the next receiver tries again


def receive(config: Dict[str, Any], source: Source) -> Dict[str, Any]:
    """Take one archive; return what the last line says."""
    mine, _held = begin(config)
    count = extract(config, source, mine)
    length, digest = source.received, source.digest.hexdigest()
    source.section(TRAILER)
    if source.exactly(TRAILER).hex() != digest:
        raise Cut("the archive's digest is wrong")
    fact = {"epoch": config["epoch"], "sha256": digest, "bytes": length, "entries": count}
    replace(os.path.join(mine, "seed.json"), json.dumps(fact).encode())
    place(config, mine)
    return {"ok": True, "bytes": length, "sha256": digest, "entries": count}


def widen() -> None:
    """Make stdin's pipe as large as it may be: fewer, larger reads."""
    try:
        fcntl.fcntl(0, 1031, BUFFER_BYTES)  # F_SETPIPE_SZ, which the module names only from 3.10 on
    except OSError:
        pass


def main() -> int:
    """Run one transfer; the exit code only repeats what the last line said."""
    os.umask(0)
    widen()
    config, source = json.loads(sys.argv[1]), Source()
    signal.signal(signal.SIGTERM, superseded)
    try:
        source.section(8)
        source.section(int.from_bytes(source.exactly(8), "big"), behind=TRAILER)
        answer = receive(config, source)
    except Refused as error:
        answer = {"ok": False, "code": error.code, "message": str(error), "cut": isinstance(error, Cut)}
    except OSError as error:
        reason = "no room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else os.strerror(error.errno or errno.EIO)
        answer = {"ok": False, "code": "seed_failed", "message": "the storage: " + reason}
    except (ValueError, OverflowError, MemoryError) as error:
        answer = {"ok": False, "code": "seed_failed", "message": "a damaged archive: " + type(error).__name__}
    say(**answer)
    if not answer["ok"]:
        source.drain()
    return 0 if answer["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
