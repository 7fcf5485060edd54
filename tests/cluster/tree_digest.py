"""One digest for a whole tree, computed by tests and, as text, by workers in their pods. Standard library only."""

import hashlib
import os


def digest(top):
    """SHA-256 over every entry below a directory: its kind, path and, where it has them, content, x bit or target."""
    whole = hashlib.sha256()
    for above, directories, names in os.walk(os.fsencode(top)):
        directories.sort()
        for name in sorted(directories + names):
            path = os.path.join(above, name)
            whole.update(b"%s\0%s\n" % (os.path.relpath(path, os.fsencode(top)), entry(path)))
    return whole.hexdigest()


def entry(path):
    """What one entry is."""
    if os.path.islink(path):
        return b"link " + os.readlink(path)
    if os.path.isdir(path):
        return b"directory"
    runs = b"x" if os.stat(path).st_mode & 0o100 else b"-"
    with open(path, "rb") as file:
        return b"file " + runs + content(file)


def content(file):
    """SHA-256 of an open file."""
    found = hashlib.sha256()
    while piece := file.read(1 << 18):
        found.update(piece)
    return found.digest()


def files(top):
    """Paths of all regular files below a directory."""
    for above, directories, names in os.walk(os.fsencode(top)):
        directories.sort()
        yield from (path for name in sorted(names) if not os.path.islink(path := os.path.join(above, name)))
