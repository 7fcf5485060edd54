"""Puts a finished directory where another is, so that a crash at any instant leaves the old one or the new one, whole.

Beside a destination ``work`` lie, for a while, ``.podgate-<hash>-new-<random>`` (being filled, or the old one after
the exchange) and, where the file system cannot exchange two names, ``.podgate-<hash>-old``. Whoever fills a staging
directory holds a lock on it; one without a lock is a leftover of a crash. The next call heals: leftovers go, and an
old directory without a new one comes back.
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import PodgateError
from launcher.extract.tree import LOOK, remove_tree

_EXCHANGE = 2
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM})
_PARENT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

Checkpoint = Callable[[str], None]
Exchange = Callable[[int, str, str], bool]


def exchange(directory: int, one: str, other: str) -> bool:
    """Exchange two names of a directory in one step; False where kernel or file system cannot. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(directory, os.fsencode(one), directory, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))


def sync_file_system(fd: int) -> None:
    """Write everything of a descriptor's file system to disk: one call instead of one for each of 20,000 files."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
    elif libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@dataclass(frozen=True)
class Staging:
    """A directory being filled: its name beside the destination, and a locked descriptor."""

    name: str
    fd: int


def _nothing(_: str) -> None:
    pass


class Place:
    """A destination and what lies beside it. Blocking.

    ``exchange`` and ``checkpoint`` (called before each step of a swap) are for tests.
    """

    def __init__(self, destination: Path, *, exchange: Exchange = exchange, checkpoint: Checkpoint = _nothing) -> None:
        """Only remember the destination. Raises ``workspace_invalid`` for the root of the file system."""
        self._path = Path(os.path.abspath(destination))  # noqa: PTH100  resolve() would follow the very link to be refused
        if not self._path.name:
            raise PodgateError("workspace_invalid", "the destination may not be the root of the file system")
        self._name = self._path.name
        self._prefix = f".podgate-{hashlib.sha256(os.fsencode(self._name)).hexdigest()[:16]}"
        self._exchange = exchange
        self._checkpoint = checkpoint
        self._parent = -1
        self._staged: list[Staging] = []

    def open(self) -> None:
        """Make the parents, look at the destination, and heal. ``close`` undoes what was begun, also after an error.

        Raises ``workspace_invalid`` for a link or a file, ``extract_io``.
        """
        with destination_errors():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._parent = os.open(self._path.parent, _PARENT)
            self._check()
        self.heal()

    def close(self) -> None:
        """Discard what is still staged, and let go of the parent directory."""
        for staging in list(self._staged):
            self.discard(staging)
        parent, self._parent = self._parent, -1
        if parent >= 0:
            os.close(parent)

    def heal(self) -> None:
        """Finish or undo what a crash left. Raises ``extract_io``."""
        with destination_errors(), self._locked():
            self._heal_old()
            for name in os.listdir(self._parent):  # noqa: PTH208  an open directory, not a path
                if name.startswith(f"{self._prefix}-new-"):
                    self._remove_unless_held(name)

    def stage(self) -> Staging:
        """Make an empty staging directory, held until ``discard`` or ``close``. Raises ``extract_io``."""
        name = f"{self._prefix}-new-{secrets.token_hex(8)}"
        with destination_errors(), self._locked():
            os.mkdir(name, 0o700, dir_fd=self._parent)
            fd = os.open(name, LOOK, dir_fd=self._parent)
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._staged.append(Staging(name, fd))
        return self._staged[-1]

    def swap(self, staging: Staging) -> None:
        """Make the staging directory the destination, durably.

        Raises ``extract_io``, ``workspace_invalid``; then nothing changed.
        """
        with destination_errors():
            os.fchmod(staging.fd, 0o755)
            sync_file_system(staging.fd)
            with self._locked():
                self._heal_old()
                self._put(staging.name)
                self._checkpoint("placed")
                os.fsync(self._parent)

    def discard(self, staging: Staging) -> None:
        """Remove what is at the staging name now: what was not used, or the old destination.

        What resists is left to the next heal.
        """
        if staging not in self._staged:
            return
        self._staged.remove(staging)
        with suppress(OSError, RecursionError):
            remove_tree(staging.name, dir_fd=self._parent)
        with suppress(OSError, RecursionError), self._locked():
            self._heal_old()
        os.close(staging.fd)

    def _put(self, name: str) -> None:
        there = self._check()
        self._checkpoint("before")
        if not there:
            self._rename(name, self._name)
        elif not self._exchange(self._parent, name, self._name):
            self._put_in_two_steps(name)

    def _put_in_two_steps(self, name: str) -> None:
        self._rename(self._name, self._old)
        self._checkpoint("between")
        try:
            self._rename(name, self._name)
        except OSError:
            self._rename(self._old, self._name)
            raise

    @property
    def _old(self) -> str:
        return f"{self._prefix}-old"

    def _rename(self, one: str, other: str) -> None:
        os.rename(one, other, src_dir_fd=self._parent, dst_dir_fd=self._parent)

    def _heal_old(self) -> None:
        if self._kind(self._old) is None:
            return
        if self._kind(self._name) is None:
            self._rename(self._old, self._name)
        else:
            remove_tree(self._old, dir_fd=self._parent)

    def _remove_unless_held(self, name: str) -> None:
        try:
            fd = os.open(name, LOOK, dir_fd=self._parent)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finally:
            os.close(fd)
        with suppress(FileNotFoundError):
            remove_tree(name, dir_fd=self._parent)

    def _kind(self, name: str) -> int | None:
        try:
            return stat.S_IFMT(os.stat(name, dir_fd=self._parent, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return None

    def _check(self) -> bool:
        """Tell whether the destination is there; refuse what is no directory of its own."""
        kind = self._kind(self._name)
        if kind is not None and kind != stat.S_IFDIR:
            what = "is a symbolic link" if kind == stat.S_IFLNK else "is not a directory"
            raise PodgateError("workspace_invalid", f"the destination {what}")
        return kind is not None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the parent directory's lock: only while names change, never while anything is transferred."""
        fd = os.open(".", _PARENT, dir_fd=self._parent)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


@contextmanager
def destination_errors() -> Iterator[None]:
    """Turn an error of the destination's disk into ``extract_io``, without any path of the host."""
    try:
        yield
    except OSError as error:
        raise PodgateError("extract_io", f"the destination: {os.strerror(error.errno or errno.EIO)}") from error
