"""The sender as a program: what it sends of a hostile tree, and when it ends."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile

import pytest

from isolation.inpod import source

NAMES = ["node_modules", ".venv"]


def argv(root, **config):
    fields = {"root": str(root), "what": "workspace", "excludeNames": NAMES, "excludePaths": [], "maxBytes": 1 << 20}
    return [sys.executable, "-I", "-S", "-c", source("send"), json.dumps({**fields, "maxEntries": 100, **config})]


@pytest.fixture
def root(tmp_path):
    for area in ("workspace", "output"):
        (tmp_path / area).mkdir()
    return tmp_path


@pytest.fixture
def tree(root):
    return root / "workspace"


def run(root, **config):
    process = subprocess.Popen(argv(root, **config), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out = process.stdout.read()
    process.stdin.close()
    process.stdout.close()
    process.wait()
    return out


def unframed(out):
    """Return the archive's bytes and the last line."""
    first, _, rest = out.partition(b"\n")
    assert json.loads(first) == {"ok": True}
    archive = bytearray()
    while length := int.from_bytes(rest[:4], "big"):
        assert length <= 256 << 10
        archive += rest[4 : 4 + length]
        rest = rest[4 + length :]
    return bytes(archive), json.loads(rest[4:])


def members(archive):
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {one.name: one for one in tar.getmembers()}


def test_what_is_sent_is_counted_and_hashed(root, tree):
    (tree / "file").write_bytes(b"x" * 700_000)
    archive, last = unframed(run(root))
    digest = hashlib.sha256(archive).hexdigest()
    assert last == {
        "ok": True, "bytes": len(archive), "sha256": digest, "entries": 1, "excluded": [], "dropped": 0,
    }  # fmt: skip


def test_an_ordinary_tar_reads_what_it_writes_also_long_names_and_links(root, tree):
    deep = "d" * 200
    (tree / deep).mkdir()
    (tree / deep / "ö").write_text("content")
    (tree / "link").symlink_to("t" * 150)
    with (tree / "sparse").open("wb") as file:
        file.truncate(100_000)
    found = members(unframed(run(root))[0])
    assert found[f"{deep}/ö"].size == 7
    assert found["link"].linkname == "t" * 150
    assert found["sparse"].isreg()
    assert found["sparse"].size == 100_000


@pytest.mark.parametrize("mode", [0o000, 0o200, 0o100, 0o4711])
def test_modes_hide_nothing_and_only_the_exec_bit_is_kept(root, tree, mode):
    (tree / "file").write_text("hidden")
    (tree / "file").chmod(mode)
    (tree / "dir").mkdir()
    (tree / "dir" / "below").write_text("b")
    (tree / "dir").chmod(mode & 0o777)
    found = members(unframed(run(root))[0])
    assert sorted(found) == ["dir", "dir/below", "file"]
    assert found["file"].mode == (0o755 if mode & 0o100 else 0o644)


def test_a_worker_without_any_rights_left_on_its_files_loses_nothing(root, tree):
    """As another user than root, to whom modes mean something."""
    (tree / "closed").mkdir()
    (tree / "closed" / "secret").write_text("s")
    for path in (root, tree, tree / "closed", tree / "closed" / "secret"):
        os.chown(path, 64001, 64001)
    (tree / "closed" / "secret").chmod(0)
    (tree / "closed").chmod(0)
    for above in root.parents:
        if str(above).startswith("/tmp/"):
            above.chmod(0o755)
    process = subprocess.Popen(
        ["/usr/bin/python3", *argv(root)[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=64001, group=64001
    )
    out = process.stdout.read()
    process.stdin.close()
    process.stdout.close()
    process.wait()
    assert "closed/secret" in members(unframed(out)[0])


def test_links_are_never_followed(root, tree, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("s")
    (tree / "out").symlink_to(tmp_path / "outside")
    found = members(unframed(run(root))[0])
    assert list(found) == ["out"]
    assert found["out"].issym()


@pytest.mark.parametrize(
    ("config", "code"), [({"maxBytes": 9}, "extract_size_limit"), ({"maxEntries": 1}, "extract_entry_limit")]
)
def test_limits_end_the_transfer_by_name(root, tree, config, code):
    (tree / "a").write_bytes(b"x" * 5)
    (tree / "b").write_bytes(b"x" * 5)
    _, last = unframed(run(root, **config))
    assert (last["ok"], last["code"]) == (False, code)


def test_a_fifo_ends_the_transfer_by_name(root, tree):
    os.mkfifo(tree / "pipe")
    _, last = unframed(run(root))
    assert (last["code"], "'pipe'" in last["message"]) == ("extract_special", True)


def test_a_path_too_deep_ends_the_transfer_by_name(root, tree):
    (tree / "/".join(["d"] * 257)).mkdir(parents=True)
    _, last = unframed(run(root, maxEntries=1000))
    assert last["code"] == "extract_name_too_long"


def test_a_file_that_shrinks_while_it_is_read_ends_the_transfer_by_name(root, tree):
    size = 8 << 20
    (tree / "a").write_bytes(b"x" * size)
    process = subprocess.Popen(argv(root, maxBytes=size), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out = process.stdout.read(4096)
    os.truncate(tree / "a", 100)
    out += process.stdout.read()
    process.stdin.close()
    process.stdout.close()
    process.wait()
    assert "became shorter" in unframed(out)[1]["message"]


def test_excluded_directories_are_listed_up_to_a_bound(root, tree):
    for number in range(3):
        (tree / f"p{number}" / ".venv").mkdir(parents=True)
    (tree / "keep" / "node_modules").mkdir(parents=True)
    archive, last = unframed(run(root, excludePaths=["p0"]))
    assert last["excluded"] == ["keep/node_modules", "p0", "p1/.venv", "p2/.venv"]
    assert last["dropped"] == 4
    assert sorted(members(archive)) == ["keep", "p1", "p2"]


def test_it_ends_when_stdin_ends_even_while_nobody_reads(root, tree):
    (tree / "big").write_bytes(bytes(8 << 20))
    process = subprocess.Popen(argv(root, maxBytes=9 << 20), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.read(10)
    process.stdin.close()
    assert process.wait(10) == 1
    process.stdout.close()


def test_it_ends_when_its_reader_is_gone(root, tree):
    (tree / "big").write_bytes(bytes(8 << 20))
    process = subprocess.Popen(argv(root, maxBytes=9 << 20), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.close()
    assert process.wait(10) == 1
    process.stdin.close()
