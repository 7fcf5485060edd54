"""A seed arrives whole and under its epoch, or fails by name; what is broken starts again from a clean directory."""

import asyncio
import json
import os

import pytest

from launcher.errors import PodgateError
from launcher.seed import prepare, send_seed
from launcher.testing.local_exec import Faults

pytestmark = pytest.mark.anyio


@pytest.fixture
def prepared(spec, settings, source, tmp_path):
    (tmp_path / "input.json").write_text('{"task": 1}')
    with prepare(spec(workspace=source, input=tmp_path / "input.json"), settings, bound_to_root=True) as prepared:
        yield prepared


@pytest.fixture
def send(pod, prepared):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    async def send(epoch=1, idle_seconds=20.0, seed=prepared):
        return await send_seed(pod, "ns", "pod", seed, epoch=epoch, idle_seconds=idle_seconds, sleep=sleep)

    send.pauses = pauses
    return send


def seed_fact(pod):
    return json.loads((pod.storage / "current" / "seed.json").read_text())


async def test_everything_is_in_place_with_normalised_modes(send, pod, source):
    receipt = await send()
    current = pod.storage / "current"
    assert seed_fact(pod) == {"epoch": 1, "sha256": receipt.sha256, "bytes": receipt.bytes, "entries": 8}
    assert (current / "workspace/package/main.py").read_text() == "print('hi')\n"
    assert (current / "workspace/run.sh").stat().st_mode & 0o7777 == 0o755
    assert (current / "workspace/package/main.py").stat().st_mode & 0o7777 == 0o644
    assert os.readlink(current / "workspace/latest") == "package/main.py"
    assert (current / "input/input.json").read_text() == '{"task": 1}'
    assert int((current / "workspace/run.sh").stat().st_mtime) == int((source / "run.sh").stat().st_mtime)


async def test_the_three_areas_are_2770_also_for_an_empty_seed(send, pod, spec, settings):
    with prepare(spec(), settings, bound_to_root=True) as empty:
        await send(seed=empty)
    for area in ("workspace", "input", "output"):
        assert (pod.storage / "current" / area).stat().st_mode & 0o7777 == 0o2770
        assert list((pod.storage / "current" / area).iterdir()) == []


async def test_hard_links_arrive_as_copies(send, pod, spec, settings, source):
    os.link(source / "run.sh", source / "again.sh")
    with prepare(spec(workspace=source), settings, bound_to_root=True) as prepared:
        await send(seed=prepared)
    again = pod.storage / "current/workspace/again.sh"
    assert again.read_bytes() == b"#!/bin/sh\n"
    assert again.stat().st_nlink == 1


async def test_a_cut_stream_starts_again_from_a_clean_directory(send, pod):
    pod.faults = [Faults(cut_sent=3000), Faults(cut_sent=5)]
    receipt = await send()
    assert seed_fact(pod)["sha256"] == receipt.sha256
    assert len(pod.execs) == 3
    assert sorted(path.name for path in pod.storage.glob("seed-*")) == []


async def test_a_stream_that_is_always_cut_fails_by_name_and_leaves_nothing_in_place(send, pod):
    pod.faults = [Faults(cut_sent=3000) for _ in range(3)]
    with pytest.raises(PodgateError, match="seed_failed"):
        await send()
    assert not (pod.storage / "current").exists()


async def test_an_exec_that_could_not_start_is_tried_again_with_growing_pauses(send, pod):
    pod.faults = [Faults(refuse=True), Faults(refuse=True)]
    await send()
    assert len(send.pauses) == 2
    assert send.pauses[0] <= 0.5 < send.pauses[1]


async def test_a_verdict_that_was_cut_off_is_no_success(send, pod):
    pod.faults = [Faults(cut_received=20) for _ in range(3)]
    with pytest.raises(PodgateError, match="seed_failed"):
        await send()


async def test_a_verdict_with_another_digest_is_no_success(send, pod):
    pod.faults = [Faults(change=lambda _at, piece: piece.replace(b'"sha256": "', b'"sha256": "0')) for _ in range(3)]
    with pytest.raises(PodgateError, match="seed_failed"):
        await send()


async def test_silence_beyond_the_idle_time_is_a_broken_transfer(send, pod):
    pod.faults = [Faults(mute_after=0) for _ in range(3)]
    with pytest.raises(PodgateError, match=r"nothing came for 0\.05 s"):
        await send(idle_seconds=0.05)


async def test_a_lower_epoch_is_superseded_and_changes_nothing(send, pod):
    newer = await send(epoch=5)
    with pytest.raises(PodgateError) as caught:
        await send(epoch=4)
    assert caught.value.code == "launch_superseded"
    assert seed_fact(pod)["epoch"] == 5
    assert seed_fact(pod)["sha256"] == newer.sha256


async def test_a_higher_epoch_replaces_what_a_lower_one_put_in_place(send, pod):
    await send(epoch=1)
    (pod.storage / "current/workspace/extra").write_text("from before")
    await send(epoch=2)
    assert seed_fact(pod)["epoch"] == 2
    assert not (pod.storage / "current/workspace/extra").exists()


async def test_a_file_that_changed_after_the_scan_fails_by_name(send, source, pod):
    (source / "run.sh").write_text("#!/bin/other\n")
    with pytest.raises(PodgateError) as caught:
        await send()
    assert (caught.value.code, "'run.sh'" in caught.value.message) == ("workspace_changed", True)
    assert not (pod.storage / "current").exists()


async def test_a_file_that_vanished_fails_by_name(send, source):
    (source / "package/main.py").unlink()
    with pytest.raises(PodgateError, match=r"workspace_changed: vanished .* 'package/main\.py'"):
        await send()


async def test_a_file_replaced_by_an_equal_one_is_a_change(send, source):
    stamp = (source / "run.sh").stat()
    (source / "new").write_bytes(b"#!/bin/sh\n")
    os.utime(source / "new", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    (source / "new").rename(source / "run.sh")
    with pytest.raises(PodgateError, match="workspace_changed"):
        await send()


async def test_a_file_that_became_a_link_is_not_followed(send, source, tmp_path):
    (source / "run.sh").unlink()
    (source / "run.sh").symlink_to(tmp_path / "input.json")
    with pytest.raises(PodgateError, match="workspace_changed"):
        await send()


async def test_what_the_receiver_refuses_is_not_tried_again(send, pod):
    pod.substitute = lambda argv: [*argv[:-1], argv[-1].replace('"maxBytes": 67108864', '"maxBytes": 5')]
    with pytest.raises(PodgateError, match="more than the limits allow"):
        await send()
    assert len(pod.execs) == 1


async def test_a_cancelled_sender_leaves_no_process_and_nothing_in_place(send, pod):
    pod.faults = [Faults(mute_after=0)]
    sending = asyncio.ensure_future(send())
    await pod.began.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert not [p for p in os.listdir("/proc") if p.isdigit() and str(pod.storage) in command_line(p)]


def command_line(process):
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return file.read().decode()
    except OSError:
        return ""


async def test_a_large_file_and_long_names_survive(send, pod, spec, settings, source):
    long = source / ("n" * 250) / ("ö" * 100)
    long.mkdir(parents=True)
    content = os.urandom((3 << 20) + 17)
    (long / "file").write_bytes(content)
    with prepare(spec(workspace=source), settings, bound_to_root=True) as prepared:
        await send(seed=prepared)
    arrived = pod.storage / "current/workspace" / long.relative_to(source) / "file"
    assert arrived.read_bytes() == content
