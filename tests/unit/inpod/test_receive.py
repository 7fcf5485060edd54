"""The receiver as a program: what it answers, what it leaves, and who may put a seed in place."""

import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time

import pytest

from isolation.inpod import source


def archive(*members):
    """Return a seed's archive: (name, content), a name with a slash at its end for a directory, or a ready TarInfo."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("workspace/", "input/"):
            tar.addfile(directory(name))
        for one in members:
            if isinstance(one, tarfile.TarInfo):
                tar.addfile(one)
            else:
                info = tarfile.TarInfo(one[0])
                info.size = len(one[1])
                tar.addfile(info, io.BytesIO(one[1]))
    return out.getvalue().rstrip(b"\0").ljust(512, b"\0")


def directory(name, kind=tarfile.DIRTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, 0o755
    return info


def ended(body):
    """Pad to whole blocks, and end with two empty ones, as our sender does."""
    return body + bytes(-len(body) % 512) + bytes(1024)


def framed(body, digest=None):
    return len(body).to_bytes(8, "big") + body + (digest or hashlib.sha256(body).digest())


SEED = ended(archive(("workspace/file", b"content"), ("input/input.json", b"{}")))


@pytest.fixture
def start(tmp_path):
    started = []

    def start(epoch=1, **config):
        fields = {"epoch": epoch, "maxBytes": 1 << 20, "maxEntries": 100, "root": str(tmp_path), **config}
        argv = [sys.executable, "-I", "-S", "-c", source("receive"), json.dumps(fields)]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def receive(start):
    def receive(data, **config):
        process = start(**config)
        out, _ = process.communicate(data)
        return json.loads(out.splitlines()[-1])

    return receive


def left(tmp_path):
    return sorted(name for name in os.listdir(tmp_path) if not name.startswith("."))


def wait_for(path):
    until = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_whole_seed_is_put_in_place_and_counted(receive, tmp_path):
    answer = receive(framed(SEED))
    digest = hashlib.sha256(SEED).hexdigest()
    assert answer == {"ok": True, "bytes": len(SEED), "sha256": digest, "entries": 4}
    assert left(tmp_path) == ["current"]
    fact = {"epoch": 1, "sha256": digest, "bytes": len(SEED), "entries": 4}
    assert json.loads((tmp_path / "current/seed.json").read_text()) == fact
    assert (tmp_path / "current/workspace/file").read_bytes() == b"content"


def test_what_the_gate_made_before_is_replaced(receive, tmp_path):
    (tmp_path / "current/workspace").mkdir(parents=True)
    assert receive(framed(SEED))["ok"]
    assert (tmp_path / "current/workspace/file").exists()


@pytest.mark.parametrize("cut", [0, 4, 8, 500, 513, len(SEED), len(SEED) + 8, len(SEED) + 39])
def test_a_cut_at_any_place_is_told_and_puts_nothing_in_place(receive, tmp_path, cut):
    answer = receive(framed(SEED)[:cut])
    assert (answer["ok"], answer["code"], answer["cut"]) == (False, "seed_failed", True)
    assert "current" not in left(tmp_path)


def test_a_wrong_digest_is_told_as_damage_and_puts_nothing_in_place(receive, tmp_path):
    answer = receive(framed(SEED, digest=bytes(32)))
    assert (answer["ok"], answer["cut"]) == (False, True)
    assert "current" not in left(tmp_path)


@pytest.mark.parametrize(
    "member",
    [
        ("elsewhere/file", b""),
        ("output/file", b""),
        ("workspace/../output/file", b""),
        ("/workspace/file", b""),
        ("workspace//file", b""),
        ("workspace/missing/file", b""),
        directory("workspace/l", tarfile.SYMTYPE, "/etc"),
        directory("workspace/l", tarfile.SYMTYPE, "../input"),
        directory("workspace/l", tarfile.SYMTYPE, ""),
        directory("workspace/l", tarfile.LNKTYPE, "workspace/file"),
        directory("workspace/l", tarfile.FIFOTYPE),
        directory("workspace/l", tarfile.CHRTYPE),
    ],
)
def test_what_is_never_sent_is_refused_and_is_no_cut(receive, tmp_path, member):
    answer = receive(framed(ended(archive(member))))
    assert (answer["ok"], answer["cut"]) == (False, False)
    assert "current" not in left(tmp_path)


def test_an_entry_beneath_a_link_or_over_another_is_refused(receive):
    beneath = archive(directory("workspace/d/"), directory("workspace/l", tarfile.SYMTYPE, "d"), ("workspace/l/x", b""))
    assert not receive(framed(ended(beneath)))["ok"]
    assert not receive(framed(ended(archive(("workspace/a", b""), ("workspace/a", b"")))))["ok"]


def test_limits_hold_while_receiving(receive):
    assert receive(framed(SEED), maxBytes=9)["ok"]
    assert "limits" in receive(framed(SEED), maxBytes=8)["message"]
    assert receive(framed(SEED), maxEntries=4)["ok"]
    assert "limits" in receive(framed(SEED), maxEntries=3)["message"]


def test_bytes_behind_the_end_are_refused(receive):
    assert not receive(framed(SEED + bytes(511) + b"x"))["ok"]


def test_a_long_archive_is_acknowledged_on_the_way(start):
    body = ended(archive(("workspace/big", b"x" * (9 << 20))))
    out, _ = start(maxBytes=16 << 20).communicate(framed(body))
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["received"] >= 4 << 20 for line in lines[:-1]] == [True] * (len(lines) - 1)
    assert len(lines) >= 3


def test_after_a_refusal_the_rest_is_drained_by_count(start):
    body = ended(archive(("elsewhere", bytes(1 << 20))))
    process = start()
    process.stdin.write(framed(body))
    process.stdin.flush()
    assert process.wait(10) == 1
    assert not json.loads(process.stdout.read().splitlines()[-1])["ok"]


def test_a_lower_epoch_is_refused_and_its_stream_drained(receive, tmp_path):
    assert receive(framed(SEED), epoch=2)["ok"]
    other = ended(archive(("workspace/other", b"")))
    assert receive(framed(other), epoch=1)["code"] == "launch_superseded"
    assert (tmp_path / "current/workspace/file").exists()


@pytest.mark.parametrize("second", [1, 2])
def test_a_newer_receiver_ends_the_one_before_also_of_the_same_epoch(start, receive, tmp_path, second):
    first = start(epoch=1)
    first.stdin.write(framed(SEED)[:600])
    first.stdin.flush()
    wait_for(tmp_path / "seed-1/workspace")
    assert receive(framed(SEED), epoch=second)["ok"]
    assert json.loads(first.communicate()[0].splitlines()[-1])["code"] == "launch_superseded"
    assert left(tmp_path) == ["current"]


def test_a_receiver_that_ignores_being_asked_is_killed(start, receive, tmp_path):
    first = start(epoch=1)
    first.stdin.write(framed(SEED)[:600])
    first.stdin.flush()
    wait_for(tmp_path / "seed-1/workspace")
    os.kill(first.pid, 19)
    assert receive(framed(SEED), epoch=2)["ok"]
    assert first.wait(10) == -9


def test_an_epoch_that_came_meanwhile_stops_the_rename(start, tmp_path):
    process = start(epoch=1)
    data = framed(SEED)
    process.stdin.write(data[:-1])
    process.stdin.flush()
    wait_for(tmp_path / "seed-1/input/input.json")
    (tmp_path / ".epoch").write_text("2")
    out, _ = process.communicate(data[-1:])
    assert json.loads(out.splitlines()[-1])["code"] == "launch_superseded"
    assert "current" not in left(tmp_path)


def test_nothing_is_put_in_place_while_the_gate_holds_the_lock(start, tmp_path):
    process = start()
    data = framed(SEED)
    process.stdin.write(data[:-1])
    process.stdin.flush()
    wait_for(tmp_path / "seed-1/input/input.json")
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process.stdin.write(data[-1:])
        process.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        assert "current" not in left(tmp_path)
    assert process.wait(10) == 0
    assert "current" in left(tmp_path)


def test_memory_stays_flat_for_a_large_file(tmp_path):
    body = ended(archive(("workspace/big", b"x" * (100 << 20))))
    config = json.dumps({"epoch": 1, "maxBytes": 1 << 30, "maxEntries": 9, "root": str(tmp_path)})
    program = source("receive").replace("sys.exit(main())", "main(); print(open('/proc/self/status').read())")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, config], input=framed(body), capture_output=True, check=True
    )
    peak = next(line for line in done.stdout.decode().splitlines() if line.startswith("VmHWM"))
    assert int(peak.split()[1]) < 32 << 10
