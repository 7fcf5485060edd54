"""What the path of an entry may be, in both directions: what is seeded must be able to come back."""

import hashlib
import os
import unicodedata

from launcher.errors import PodgateError

ENTRY_LIMIT = 100_000
"""Entries of one archive; more are a mistake (or an attack on the inodes) rather than a workspace."""
NAME_BYTES = 255
"""NAME_MAX of every file system in use."""
PATH_BYTES = 4000
"""Below PATH_MAX (4096), with room for the destination's own path."""
DEPTH = 256
"""Directories above an entry; each is opened on its own, so a limit keeps the work per entry bounded."""
LINK_HOPS = 40
"""What Linux itself follows before ELOOP."""
LINK_BYTES = 8 << 20
"""Bytes of all link targets together: they are kept in memory until the end."""
MESSAGE_CHARACTERS = 200

Parts = tuple[bytes, ...]


def shown(path: bytes) -> str:
    """Return a path for a message: printable, unmistakable, and of bounded length."""
    text = path.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= MESSAGE_CHARACTERS else text[:MESSAGE_CHARACTERS] + "…")


def split(path: bytes) -> Parts:
    """Return the parts of an entry's path. Raises ``extract_path_invalid`` and ``extract_name_too_long``."""
    parts = tuple(path.split(b"/"))
    if b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise PodgateError("extract_path_invalid", f"an entry has the path {shown(path)}")
    fault = length_fault(parts)
    if fault:
        raise PodgateError("extract_name_too_long", f"{fault}: {shown(path)}")
    if not is_utf8(path):
        raise PodgateError("extract_path_invalid", f"a name that is not UTF-8: {shown(path)}")
    return parts


def length_fault(parts: Parts) -> str | None:
    """Return what is too long about a path; None when nothing is."""
    if max(map(len, parts)) > NAME_BYTES:
        return f"a name longer than {NAME_BYTES} bytes"
    if sum(map(len, parts)) + len(parts) > PATH_BYTES:
        return f"a path longer than {PATH_BYTES} bytes"
    return f"deeper than {DEPTH} directories" if len(parts) > DEPTH else None


def is_utf8(path: bytes) -> bool:
    """Tell whether a name is valid UTF-8; others cannot be shown, and not every file system takes them."""
    try:
        path.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def folded(path: bytes) -> bytes:
    """Return a key under which names are equal that some file system holds to be one."""
    if path.isascii():
        return path.lower()
    text = unicodedata.normalize("NFC", path.decode("utf-8", "surrogateescape")).casefold()
    return unicodedata.normalize("NFC", text).encode("utf-8", "surrogateescape")


class Seen:
    """The paths so far, as keyed digests of 16 bytes: 100,000 long paths must not fill the memory."""

    def __init__(self) -> None:
        self._key = os.urandom(16)
        self._digests: set[bytes] = set()

    def add(self, path: bytes) -> bool:
        """Remember a path; False when it, or one that differs only in case or composition, was there."""
        digest = hashlib.blake2b(folded(path), digest_size=16, key=self._key).digest()
        if digest in self._digests:
            return False
        self._digests.add(digest)
        return True

    def __len__(self) -> int:
        """Return how many paths there were."""
        return len(self._digests)
