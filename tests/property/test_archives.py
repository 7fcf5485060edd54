"""Random trees come back equal; nothing damaged, cut or hostile ever becomes a success or touches what was there."""

import asyncio
import os
import shutil
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isolation.options import IsolationOptions
from isolation.spec import JobSpec
from launcher.errors import PodgateError
from launcher.extract.extraction import Extraction, Limits
from launcher.extract.rules import folded
from launcher.seed import prepare, send_seed
from launcher.settings import Settings
from launcher.testing.local_exec import Faults, LocalPod
from launcher.workspace import materialize

IMAGE = "r/i@sha256:" + "0" * 64
SETTINGS = Settings(isolation=IsolationOptions(trusted_image=IMAGE))
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(max_examples=150, deadline=None)

names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=40).filter(
    lambda name: name not in {".", "..", "venv"} and len(name.encode()) <= 120
)
contents = st.binary(max_size=2000) | st.integers(0, 300_000).map(lambda size: b"z" * size)
trees = st.recursive(
    st.tuples(contents, st.booleans()),
    lambda below: st.dictionaries(names, below, max_size=4),
    max_leaves=12,
).filter(lambda tree: isinstance(tree, dict))


def distinct(tree):
    """Keep one of the names that some file system holds to be one."""
    kept = {folded(name.encode()): name for name in tree}
    return {name: distinct(tree[name]) if isinstance(tree[name], dict) else tree[name] for name in kept.values()}


def plant(tree, path):
    path.mkdir()
    for name, below in tree.items():
        if isinstance(below, dict):
            plant(below, path / name)
        else:
            (path / name).write_bytes(below[0])
            (path / name).chmod(0o700 if below[1] else 0o600)


def harvest(path):
    return {
        entry.name: harvest(entry) if entry.is_dir() else (entry.read_bytes(), bool(entry.stat().st_mode & 0o100))
        for entry in path.iterdir()
    }


async def no_pause(_seconds):
    """Retry at once."""


async def seeded(place, *, faults=()):
    pod = LocalPod(place / "storage", faults=list(faults))
    spec = JobSpec(run_id="r", image=IMAGE, workspace=place / "source", disk_mb=64)
    with prepare(spec, SETTINGS, bound_to_root=False) as prepared:
        await send_seed(pod, "n", "p", prepared, epoch=1, idle_seconds=20, sleep=no_pause)
    return pod


async def brought(pod, place):
    await materialize(pod, "n", "p", place / "back", disk_mb=64, sleep=no_pause)


class Place:
    """A temporary directory for one example."""

    def __enter__(self):
        self.path = Path(tempfile.mkdtemp())
        (self.path / "storage").mkdir()
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path)


@few
@given(trees.map(distinct))
def test_a_tree_goes_in_and_comes_back_equal(tree):
    with Place() as place:
        plant(tree, place / "source")
        asyncio.run(brought(asyncio.run(seeded(place)), place))
        assert harvest(place / "back") == tree


@few
@given(trees.map(distinct), st.integers(0, 60_000))
def test_a_seed_that_is_always_cut_is_in_place_whole_or_not_at_all(tree, cut):
    with Place() as place:
        plant(tree, place / "source")
        try:
            asyncio.run(seeded(place, faults=[Faults(cut_sent=cut) for _ in range(3)]))
        except PodgateError:
            assert not (place / "storage/current").exists()
        else:
            assert harvest(place / "storage/current/workspace") == tree


@few
@given(trees.map(distinct), st.integers(0, 40_000), st.integers(1, 255))
def test_a_changed_byte_on_the_way_back_is_never_a_success_with_another_content(tree, at, change):
    def damage(start, piece):
        if not start <= at < start + len(piece):
            return piece
        damaged = bytearray(piece)
        damaged[at - start] ^= change
        return bytes(damaged)

    with Place() as place:
        (place / "storage/current").mkdir()
        plant(tree, place / "storage/current/workspace")
        pod = LocalPod(place / "storage", faults=[Faults(change=damage) for _ in range(3)])
        (place / "back").mkdir()
        try:
            asyncio.run(brought(pod, place))
        except PodgateError:
            assert os.listdir(place / "back") == []
        else:
            assert harvest(place / "back") == tree
        assert sorted(os.listdir(place)) == ["back", "storage"]


kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
paths = st.lists(st.sampled_from(["a", "b", "A", "..", ".", "", "é", "n" * 120]), min_size=1, max_size=4).map("/".join)


@st.composite
def archives(draw):
    """Archives of entries that collide, climb and link as they like."""
    out = bytearray()
    for _ in range(draw(st.integers(0, 8))):
        info = tarfile.TarInfo(draw(paths))
        info.type, info.linkname = draw(kinds), draw(paths)
        content = draw(st.binary(max_size=40)) if info.type == tarfile.REGTYPE else b""
        info.size = len(content)
        out += info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict") + content + bytes(-len(content) % 512)
    return bytes(out) + bytes(1024)


def extract(archive, root, steps):
    fd = os.open(root, os.O_RDONLY)
    extraction = Extraction(fd, Limits(100_000, 60))
    try:
        for at in range(0, len(archive), steps):
            extraction.feed(archive[at : at + steps])
        extraction.finish()
    finally:
        extraction.close()
        os.close(fd)


@many
@given(archives(), st.integers(1, 2000))
def test_whatever_an_archive_says_nothing_appears_outside_and_no_link_leads_there(archive, steps):
    with Place() as place:
        (place / "root").mkdir()
        with suppress(PodgateError):
            extract(archive, place / "root", steps)
        assert sorted(os.listdir(place)) == ["root", "storage"]
        for entry in (place / "root").rglob("*"):
            assert os.path.realpath(entry).startswith(os.path.realpath(place / "root"))


@many
@given(archives(), st.data())
def test_a_truncated_or_scribbled_archive_never_raises_anything_but_our_errors(archive, data):
    cut = data.draw(st.integers(0, len(archive)))
    body = bytearray(archive[:cut])
    for at in data.draw(st.lists(st.integers(0, max(0, cut - 1)), max_size=3)) if cut else ():
        body[at] = data.draw(st.integers(0, 255))
    with Place() as place:
        (place / "root").mkdir()
        if cut < len(archive) - 512:
            with pytest.raises(PodgateError):
                extract(bytes(body), place / "root", 700)
        else:
            with suppress(PodgateError):
                extract(bytes(body), place / "root", 700)
        assert sorted(os.listdir(place)) == ["root", "storage"]
