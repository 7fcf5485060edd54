"""Sends what a worker left, from the keeper: its result, or its whole workspace.

Exec: ``python3 -I -S -c <this> <config>``; config and protocol are in the package's docstring. The worker has ended,
but the tree is hostile all the same: nothing is followed, whatever cannot be sent ends the transfer by name, and one
buffer of 256 KiB is all the memory that content takes.
"""

from __future__ import annotations

import _thread
import binascii
import errno
import fcntl
import hashlib
import json
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple, Union

BLOCK = 512
BUFFER_BYTES = 256 << 10
PIPE_BYTES = 1 << 20
PATH_BYTES = 4000
DEPTH = 256
EXCLUDED_LISTED = 1000
LOOK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
BARE = getattr(os, "O_PATH", 0o10000000) | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """Something in the tree cannot be sent. ``code`` is the launcher's own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def shown(path: bytes) -> str:
    """Return a path for a message: printable, and of bounded length."""
    return repr(path.decode("utf-8", "backslashreplace")[:200])


def say(line: Dict[str, Any]) -> None:
    """Write one JSON line to stdout, whole."""
    write([json.dumps(line).encode() + b"\n"])


def write(pieces: Sequence[Union[bytes, memoryview]]) -> None:
    """Write all of a few pieces to stdout; a pipe may take them in parts."""
    views = [memoryview(piece) for piece in pieces]
    while views:
        done = os.writev(1, views)
        while views and done >= len(views[0]):
            done -= len(views.pop(0))
        if views:
            views[0] = views[0][done:]


class Frames:
    """The archive on its way out, in frames of at most 256 KiB, counted and hashed."""

    def __init__(self) -> None:
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self.used = self.count = 0
        self.digest = hashlib.sha256()

    def flush(self) -> None:
        """Send what has gathered as one frame."""
        if self.used:
            frame = self.view[: self.used]
            self.digest.update(frame)
            write([self.used.to_bytes(4, "big"), frame])
            self.count += self.used
            self.used = 0

    def put(self, data: bytes) -> None:
        """Append a short piece."""
        if self.used + len(data) > BUFFER_BYTES:
            self.flush()
        self.view[self.used : self.used + len(data)] = data
        self.used += len(data)

    def content(self, fd: int, size: int, path: bytes) -> None:
        """Append exactly ``size`` bytes of a file, and padding."""
        left = size
        while left:
            if self.used == BUFFER_BYTES:
                self.flush()
            got = os.readv(fd, [self.view[self.used : min(BUFFER_BYTES, self.used + left)]])
            if not got:
                raise Refused("collect_failed", "%s became shorter while it was read" % shown(path))
            self.used += got
            left -= got
        self.put(b"\0" * (-size % BLOCK))


def record(key: bytes, value: bytes) -> bytes:
    """Return one record of an extended header; its length counts its own digits."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while length != len(body) + len(b"%d" % length):
        length = len(body) + len(b"%d" % length)
    return b"%d" % length + body


def block(name: bytes, flag: bytes, mode: int, size: int, mtime: int, *, target: bytes = b"") -> bytes:
    """Return one header block."""
    fields = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode, 0, 0, size, mtime)
    head = name.ljust(100, b"\0") + fields + b" " * 8 + flag + target.ljust(100, b"\0") + b"ustar\0" + b"00"
    head = head.ljust(BLOCK, b"\0")
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


def header(path: bytes, flag: bytes, mode: int, size: int, mtime: float, *, target: bytes = b"") -> bytes:
    """Return an entry's header, with an extended one before it where a field is too small."""
    more = b""
    if len(path) > 100:
        more += record(b"path", path)
    if len(target) > 100:
        more += record(b"linkpath", target)
    if size >= 8**11:
        more += record(b"size", b"%d" % size)
    mtime = min(max(int(mtime), 0), 8**11 - 1)
    plain = block(path[:100], flag, mode, size if size < 8**11 else 0, mtime, target=target[:100])
    if not more:
        return plain
    return block(b"extended", b"x", 0o644, len(more), 0) + more + b"\0" * (-len(more) % BLOCK) + plain


def opened(name: bytes, flags: int, above: int) -> int:
    """Open an entry; when its mode forbids that, give its owner (us) the right first."""
    try:
        return os.open(name, flags, dir_fd=above)
    except PermissionError:
        bare = os.open(name, BARE, dir_fd=above)
        try:
            mode = os.fstat(bare).st_mode
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                os.chmod("/proc/self/fd/%d" % bare, stat.S_IMODE(mode) | (0o700 if stat.S_ISDIR(mode) else 0o400))
        finally:
            os.close(bare)
        return os.open(name, flags, dir_fd=above)


def directory(name: bytes, above: int) -> int:
    """Open a directory that can be listed and searched."""
    fd = opened(name, LOOK, above)
    mode = os.fstat(fd).st_mode
    if mode & 0o700 != 0o700:
        os.fchmod(fd, stat.S_IMODE(mode) | 0o700)
    return fd


class Sender:
    """Walks a tree from its root, one directory at a time, and sends each entry once."""

    def __init__(self, config: Dict[str, Any], frames: Frames) -> None:
        self.frames = frames
        self.names = {os.fsencode(name) for name in config["excludeNames"]}
        self.paths = {os.fsencode(path) for path in config["excludePaths"]}
        self.room, self.entries_left = config["maxBytes"], config["maxEntries"]
        self.entries = self.dropped = 0
        self.excluded: List[str] = []

    def tree(self, root: int) -> None:
        """Send everything below ``root``."""
        pending: List[Tuple[bytes, Optional[bytes]]] = [(b"", None)]
        while pending:
            above, name = pending.pop()
            path = join(above, name) if name is not None else b""
            fd = self.reach(root, path)
            try:
                names = sorted(self.listing(fd, path))
                pending.extend((path, child) for child in names if self.entry(fd, child, join(path, child)))
            finally:
                os.close(fd)

    def reach(self, root: int, path: bytes) -> int:
        """Open a directory part by part, without following anything."""
        fd = os.dup(root)
        for part in path.split(b"/") if path else ():
            try:
                below = directory(part, fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    def listing(self, fd: int, path: bytes) -> List[bytes]:
        """Return a directory's names, as many as the limit leaves; more would not fit into the keeper's memory."""
        names = []
        with os.scandir(fd) as found:
            for entry in found:
                names.append(os.fsencode(entry.name))
                self.entries_left -= 1
                if self.entries_left < 0:
                    raise Refused("extract_entry_limit", "more entries than the limit at %s" % shown(path))
        return names

    def entry(self, above: int, name: bytes, path: bytes) -> bool:
        """Send one entry; return whether it is a directory to go into."""
        if len(path) > PATH_BYTES or path.count(b"/") >= DEPTH:
            raise Refused("extract_name_too_long", "a path too long or too deep: %s" % shown(path))
        seen = os.stat(name, dir_fd=above, follow_symlinks=False)
        if self.excludes(name, path, seen.st_mode):
            return False
        self.entries += 1
        if stat.S_ISDIR(seen.st_mode):
            self.frames.put(header(path + b"/", b"5", 0o755, 0, seen.st_mtime))
            return True
        if stat.S_ISLNK(seen.st_mode):
            self.frames.put(header(path, b"2", 0o777, 0, seen.st_mtime, target=os.readlink(name, dir_fd=above)))
        elif stat.S_ISREG(seen.st_mode):
            self.file(above, name, path)
        else:
            raise Refused("extract_special", "a device, fifo or socket: %s" % shown(path))
        return False

    def excludes(self, name: bytes, path: bytes, mode: int) -> bool:
        """Tell whether the exclusions drop an entry, and list dropped directories.

        A plain file goes by its path only.
        """
        if path not in self.paths and (name not in self.names or stat.S_ISREG(mode)):
            return False
        if stat.S_ISDIR(mode):
            self.dropped += 1
            if len(self.excluded) < EXCLUDED_LISTED:
                self.excluded.append(path.decode("utf-8", "backslashreplace"))
        return True

    def file(self, above: int, name: bytes, path: bytes) -> None:
        """Send one regular file as it is now."""
        fd = opened(name, READ, above)
        try:
            now = os.fstat(fd)
            if not stat.S_ISREG(now.st_mode):
                raise Refused("collect_failed", "%s changed while it was read" % shown(path))
            self.room -= now.st_size
            if self.room < 0:
                raise Refused("extract_size_limit", "more bytes than the limit at %s" % shown(path))
            self.frames.put(header(path, b"0", 0o755 if now.st_mode & 0o100 else 0o644, now.st_size, now.st_mtime))
            self.frames.content(fd, now.st_size, path)
        finally:
            os.close(fd)


def join(above: bytes, name: bytes) -> bytes:
    """Return a path below another; the root's is empty."""
    return above + b"/" + name if above else name


def workspace(config: Dict[str, Any]) -> Dict[str, Any]:
    """Send the workspace; return the last line."""
    frames = Frames()
    sender = Sender(config, frames)
    say({"ok": True})
    try:
        sender.tree(directory(b"workspace", os.open(config["root"], LOOK)))
        frames.put(b"\0" * (2 * BLOCK))
        frames.flush()
    except Refused as error:
        answer: Dict[str, Any] = {"ok": False, "code": error.code, "message": str(error)}
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        answer = {"ok": False, "code": "collect_failed", "message": reason(error)}
    else:
        answer = {"ok": True, "bytes": frames.count, "sha256": frames.digest.hexdigest(), "entries": sender.entries}
        answer.update(excluded=sorted(sender.excluded), dropped=sender.dropped)
    write([b"\0\0\0\0"])
    return answer


def reason(error: OSError) -> str:
    """Return what went wrong with which entry, without anything else."""
    name = error.filename if isinstance(error.filename, (bytes, str)) else b""
    return "%s: %s" % (shown(os.fsencode(name)), os.strerror(error.errno or errno.EIO))


def result(config: Dict[str, Any]) -> Dict[str, Any]:
    """Return the line that holds the result, or says that there is none."""
    above = directory(b"output", os.open(config["root"], LOOK))
    try:
        fd = opened(b"result.json", READ, above)
    except FileNotFoundError:
        return {"ok": True, "present": False, "bytes": 0, "sha256": hashlib.sha256().hexdigest(), "content": ""}
    now = os.fstat(fd)
    if not stat.S_ISREG(now.st_mode):
        raise Refused("result_invalid", "output/result.json is not a regular file")
    if now.st_size > config["maxBytes"]:
        return {"ok": True, "present": True, "bytes": now.st_size}
    with open(fd, "rb") as file:
        body = file.read(config["maxBytes"] + 1)
    if len(body) > config["maxBytes"]:
        return {"ok": True, "present": True, "bytes": len(body)}
    digest = hashlib.sha256(body).hexdigest()
    return {
        "ok": True,
        "present": True,
        "bytes": len(body),
        "sha256": digest,
        "content": binascii.b2a_base64(body, newline=False).decode(),
    }


def told(config: Dict[str, Any]) -> Dict[str, Any]:
    """Return the result's line, also when it cannot be read."""
    try:
        return result(config)
    except Refused as error:
        return {"ok": False, "code": error.code, "message": str(error)}
    except OSError as error:
        code = "result_invalid" if error.errno in (errno.ELOOP, errno.ENXIO) else "collect_failed"
        return {"ok": False, "code": code, "message": "output/result.json: " + os.strerror(error.errno or errno.EIO)}


def leave_with_stdin() -> NoReturn:
    """End with stdin: a program that only writes gets no signal when its reader has gone, and would stay for ever."""
    while True:
        try:
            if not os.read(0, 4096):
                break
        except OSError:
            break
    os._exit(1)


def main() -> int:
    """Send what the config asks for."""
    config = json.loads(sys.argv[1])
    _thread.start_new_thread(leave_with_stdin, ())
    try:
        fcntl.fcntl(1, 1031, PIPE_BYTES)  # F_SETPIPE_SZ, which the module names only from 3.10 on
    except OSError:
        pass
    try:
        answer = workspace(config) if config["what"] == "workspace" else told(config)
        say(answer)
    except BrokenPipeError:
        return 1
    return 0 if answer["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
