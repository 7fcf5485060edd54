"""Makes entries below one directory, on a disk that is ours, by descriptors that follow nothing."""

import os
import stat
from contextlib import suppress

from launcher.errors import PodgateError
from launcher.extract.rules import Parts, shown

LOOK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_below(root: int, parts: Parts) -> int:
    """Open a directory part by part below ``root``. Raises OSError; a link on the way is ENOTDIR or ELOOP."""
    fd = os.dup(root)
    for part in parts:
        try:
            below = os.open(part, LOOK, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


class Tree:
    """Two descriptors: the root, and the directory last used (a sender goes directory by directory)."""

    def __init__(self, root: int) -> None:
        self._root = os.dup(root)
        self._parts: Parts = ()
        self._fd = os.dup(root)

    def close(self) -> None:
        """Give the descriptors back; once."""
        for fd in (self._root, self._fd):
            with suppress(OSError):
                os.close(fd)

    def directory(self, parts: Parts) -> None:
        """Make one directory, 0755 whatever the umask."""
        above = self._above(parts)
        os.mkdir(parts[-1], 0o755, dir_fd=above)
        made = os.open(parts[-1], LOOK, dir_fd=above)
        try:
            os.fchmod(made, 0o755)
        finally:
            os.close(made)

    def file(self, parts: Parts, *, executable: bool) -> int:
        """Make one file, 0644 or 0755 whatever the umask, and return its descriptor."""
        mode = 0o755 if executable else 0o644
        fd = os.open(parts[-1], _MAKE, mode, dir_fd=self._above(parts))
        os.fchmod(fd, mode)
        return fd

    def symlink(self, parts: Parts, target: bytes) -> None:
        """Make one link; whether it may be was decided before."""
        os.symlink(target, parts[-1], dir_fd=self._above(parts))

    def _above(self, parts: Parts) -> int:
        if parts[:-1] != self._parts:
            fd = open_below(self._root, parts[:-1])
            os.close(self._fd)
            self._parts, self._fd = parts[:-1], fd
        return self._fd


def remove_tree(name: str | bytes, *, dir_fd: int) -> None:
    """Remove a tree (or a file or link) without following anything; absent is fine.

    Directories that cannot be listed are opened up first.
    """
    try:
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=dir_fd)
        return
    with suppress(PermissionError):
        os.chmod(name, 0o700, dir_fd=dir_fd)
    below = os.open(name, LOOK, dir_fd=dir_fd)
    try:
        for child in os.listdir(below):  # noqa: PTH208  an open directory, not a path
            remove_tree(child, dir_fd=below)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=dir_fd)


def refusal(error: OSError, path: bytes) -> PodgateError:
    """Return what an error of the destination means. No path of ours is in it, only the entry's own."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return PodgateError("extract_duplicate", f"an entry lies on or under another: {shown(path)}")
    if isinstance(error, FileNotFoundError):
        return PodgateError("extract_path_invalid", f"an entry without its directory: {shown(path)}")
    return PodgateError("extract_io", f"{os.strerror(error.errno or 0)}: {shown(path)}")
