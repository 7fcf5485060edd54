"""Archives as a hostile pod might write them: every header field as the test wants it."""

import io
import tarfile

END = bytes(1024)


def member(name, content=b"", *, kind=tarfile.REGTYPE, target="", mode=0o644, size=None, pax=None):
    """Return one entry's bytes; ``size`` lies about the content's length."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    info.size = len(content) if size is None else size
    info.pax_headers = pax or {}
    head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return head + content + bytes(-len(content) % 512)


def directory(name):
    return member(name, kind=tarfile.DIRTYPE, mode=0o755)


def link(name, target):
    return member(name, kind=tarfile.SYMTYPE, target=target)


def raw(name, *, flag=b"0", size=b"00000000000", prefix=b"", checksum=None):
    """Return a header block whose fields are taken as they are."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108], block[124:136], block[136:148] = b"0000644\0", size.ljust(12, b"\0"), b"00000000000\0"
    block[156:157], block[257:265] = flag, b"ustar\x0000"
    block[345 : 345 + len(prefix)] = prefix
    block[148:156] = b" " * 8
    block[148:156] = checksum or b"%06o\0 " % sum(block)
    return bytes(block)


def gnu_long_name(name):
    info = tarfile.TarInfo(name)
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def read_back(path):
    """Return a tree as a mapping from relative path to what is there."""
    return {
        str(entry.relative_to(path)): ("link", str(entry.readlink()))
        if entry.is_symlink()
        else ("directory", "")
        if entry.is_dir()
        else ("file", entry.read_bytes())
        for entry in path.rglob("*")
    }


def whole(*members):
    out = io.BytesIO()
    for one in members:
        out.write(one)
    return out.getvalue() + END
