"""A workspace comes back whole and by one swap, or fails by name and the destination is what it was."""

import asyncio
import fcntl
import json
import os
import struct
from pathlib import Path

import pytest

from launcher.errors import PodgateError
from launcher.extract.swap import Place
from launcher.testing.local_exec import Faults
from launcher.workspace import materialize

pytestmark = pytest.mark.anyio


@pytest.fixture
def left(pod):
    """What the worker left."""
    root = pod.storage / "current" / "workspace"
    root.mkdir(parents=True)
    (root / "done.txt").write_text("done")
    (root / "sub").mkdir()
    (root / "sub" / "tool").write_bytes(b"\x7fELF")
    (root / "sub" / "tool").chmod(0o6755)
    (root / "link").symlink_to("sub/tool")
    return root


@pytest.fixture
def destination(tmp_path):
    """A workspace from before."""
    path = tmp_path / "run" / "workspace"
    path.mkdir(parents=True)
    (path / "old.txt").write_text("old")
    return path


@pytest.fixture
def bring(pod, destination):
    async def sleep(_seconds):
        pass

    async def bring(into=destination, **options):
        return await materialize(pod, "ns", "pod", into, sleep=sleep, **{"disk_mb": 64, **options})

    return bring


async def fails(bring, code, **options):
    with pytest.raises(PodgateError) as caught:
        await bring(**options)
    assert caught.value.code == code
    return caught.value.message


def untouched(destination: Path) -> bool:
    return os.listdir(destination) == ["old.txt"] and os.listdir(destination.parent) == [destination.name]


async def test_the_new_workspace_replaces_the_old_one(bring, left, destination):
    brought = await bring()
    assert sorted(os.listdir(destination)) == ["done.txt", "link", "sub"]
    assert (brought.path, brought.entries, brought.excluded) == (destination, 4, ())
    assert os.listdir(destination.parent) == ["workspace"]


async def test_set_id_bits_do_not_come_back(bring, left, destination):
    await bring()
    assert (destination / "sub" / "tool").stat().st_mode & 0o7777 == 0o755
    assert (destination / "done.txt").stat().st_mode & 0o7777 == 0o644
    assert os.readlink(destination / "link") == "sub/tool"


async def test_a_destination_that_is_not_there_yet_is_made_with_its_parents(bring, left, tmp_path):
    await bring(into=tmp_path / "a" / "b" / "workspace")
    assert (tmp_path / "a/b/workspace/done.txt").read_text() == "done"


async def test_bringing_twice_gives_equal_answers(bring, left):
    assert await bring() == await bring()


async def test_unreadable_files_and_directories_of_the_worker_come_back(bring, left, destination):
    (left / "closed").mkdir()
    (left / "closed" / "secret").write_text("s")
    (left / "closed" / "secret").chmod(0)
    (left / "closed").chmod(0)
    await bring()
    assert (destination / "closed" / "secret").read_text() == "s"


async def test_hard_links_come_back_as_copies(bring, left, destination):
    os.link(left / "done.txt", left / "twin.txt")
    await bring()
    assert (destination / "twin.txt").stat().st_nlink == 1
    assert (destination / "twin.txt").read_text() == "done"


async def test_caches_are_left_behind_at_any_depth_and_named(bring, left, destination):
    for cache in ("node_modules", "sub/.venv", "sub/__pycache__"):
        (left / cache).mkdir()
        (left / cache / "escape").symlink_to("/etc")
    (left / "sub" / "venv").symlink_to("/opt/venv")
    (left / "venv").write_text("a plain file of that name")
    brought = await bring()
    assert brought.excluded == ("node_modules", "sub/.venv", "sub/__pycache__")
    assert sorted(os.listdir(destination / "sub")) == ["tool"]
    assert (destination / "venv").is_file()


async def test_the_specs_own_paths_are_left_behind_only_where_they_say(bring, left, destination):
    (left / "build").mkdir()
    (left / "sub" / "build").mkdir()
    brought = await bring(exclude=["build", "done.txt"])
    assert brought.excluded == ("build",)
    assert sorted(os.listdir(destination)) == ["link", "sub"]
    assert (destination / "sub" / "build").is_dir()


async def test_a_fifo_fails_by_name(bring, left, destination):
    os.mkfifo(left / "pipe")
    assert "'pipe'" in await fails(bring, "extract_special")
    assert untouched(destination)


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "sub/../.."])
async def test_a_link_that_leads_outside_fails_by_name(bring, left, destination, target):
    (left / "escape").symlink_to(target)
    assert "'escape'" in await fails(bring, "extract_symlink_escape")
    assert untouched(destination)


async def test_a_name_that_is_not_utf_8_fails_by_name(bring, left, destination):
    (left / os.fsdecode(b"caf\xe9")).write_text("")
    assert r"caf\\xe9" in await fails(bring, "extract_path_invalid")
    assert untouched(destination)


async def test_names_that_differ_only_in_case_fail_by_name(bring, left, destination):
    (left / "DONE.TXT").write_text("")
    await fails(bring, "extract_duplicate")
    assert untouched(destination)


async def test_more_than_the_disk_holds_is_refused_before_it_is_read(bring, left, destination):
    with (left / "huge").open("wb") as file:
        file.truncate(65 << 20)
    await fails(bring, "extract_size_limit")
    assert untouched(destination)


async def test_a_cut_stream_is_tried_again_from_a_clean_directory(bring, left, pod, destination):
    pod.faults = [Faults(cut_received=700), Faults(refuse=True)]
    await bring()
    assert (destination / "done.txt").read_text() == "done"
    assert len(pod.execs) == 3


@pytest.mark.parametrize("cut", [0, 5, 12, 16, 20, 700, 4000])
async def test_a_stream_that_is_always_cut_fails_by_name(bring, left, pod, destination, cut):
    pod.faults = [Faults(cut_received=cut) for _ in range(3)]
    await fails(bring, "collect_failed")
    assert untouched(destination)


async def test_a_changed_byte_is_found_by_the_digest(bring, left, pod, destination):
    pod.faults = [Faults(change=lambda _at, piece: piece.replace(b"done\0", b"dome\0")) for _ in range(3)]
    assert "digest" in await fails(bring, "collect_failed")
    assert untouched(destination)


async def test_silence_is_a_broken_transfer(bring, left, pod, destination):
    pod.faults = [Faults(mute_after=1) for _ in range(3)]
    assert "nothing came" in await fails(bring, "collect_failed", idle_seconds=0.05)
    assert untouched(destination)


async def test_a_transfer_that_trickles_ends_with_its_time(bring, left, pod, destination):
    pod.faults = [Faults(mute_after=1)]
    await fails(bring, "extract_time_limit", idle_seconds=60, seconds=0.2)
    assert untouched(destination)


async def test_a_missing_workspace_in_the_pod_is_no_empty_one(bring, pod, destination):
    (pod.storage / "current").mkdir()
    assert "workspace" in await fails(bring, "collect_failed")
    assert untouched(destination)


async def test_a_frame_larger_than_any_that_is_sent_is_refused(bring, left, pod, destination):
    line = b'{"ok": true}\n' + struct.pack(">I", 1 << 30)
    pod.faults = [Faults(change=lambda at, piece: line if at == 0 else piece) for _ in range(3)]
    assert "frame" in await fails(bring, "collect_failed")
    assert untouched(destination)


async def test_a_pod_may_not_claim_codes_that_are_not_its_own(bring, left, pod, destination):
    line = json.dumps({"ok": False, "code": "policy_not_enforced", "message": "no"}).encode() + b"\n"
    pod.faults = [Faults(change=lambda at, _piece: line if at == 0 else b"")]
    await fails(bring, "collect_failed")
    assert untouched(destination)


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("elsewhere"), lambda path: path.write_text("file")])
async def test_a_destination_that_is_no_directory_of_its_own_is_refused_before_any_exec(
    bring, left, pod, tmp_path, make
):
    make(tmp_path / "there")
    await fails(bring, "workspace_invalid", into=tmp_path / "there")
    assert pod.execs == []


async def test_the_root_is_no_destination(bring, left):
    await fails(bring, "workspace_invalid", into=Path("/"))


async def test_a_cancelled_call_leaves_the_destination_as_it_was(bring, left, pod, destination):
    pod.faults = [Faults(mute_after=100)]
    bringing = asyncio.ensure_future(bring())
    await pod.began.wait()
    bringing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bringing
    assert untouched(destination)


async def test_two_calls_at_once_do_not_disturb_one_another(bring, left, destination):
    one, other = await asyncio.gather(bring(), bring())
    assert one == other
    assert sorted(os.listdir(destination)) == ["done.txt", "link", "sub"]
    assert os.listdir(destination.parent) == ["workspace"]


async def test_leftovers_of_a_crash_are_gone_after_the_next_call(bring, left, destination):
    place = Place(destination)
    place.open()
    fcntl.flock(place.stage().fd, fcntl.LOCK_UN)
    await bring()
    assert os.listdir(destination.parent) == ["workspace"]
    place.close()
