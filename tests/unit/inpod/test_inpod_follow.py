"""follow and keeper as processes."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from inpod_lab import PYTHON, ScriptedProver, eventually, free_port

from isolation.objects.programs import FollowConfig, KeeperConfig, argv

MARKER = {"podUid": "u", "startId": "s", "epoch": 1, "seedSha256": "a" * 64}


@pytest.fixture
def prover():
    scripted = ScriptedProver({"GET /state": (200, {"startId": "s", "rounds": 1})})
    yield scripted
    scripted.close()


def start(programs, tmp_path, port):
    return programs.start("follow", FollowConfig(root=str(tmp_path), health_port=port))


def send(follow, line):
    follow.process.stdin.write(line + b"\n")
    follow.process.stdin.flush()


def test_the_state_is_told_once_a_round(programs, tmp_path, prover):
    follow = start(programs, tmp_path, prover.port)
    assert follow.line()["rounds"] == 1
    eventually(lambda: len(prover.asked) > 5)
    prover.answers["GET /state"] = (200, {"startId": "s", "rounds": 2})
    assert follow.line()["rounds"] == 2


def test_a_prover_that_is_away_is_told_and_waited_for(programs, tmp_path):
    follow = start(programs, tmp_path, free_port())
    assert "waiting" in follow.line()
    assert "waiting" in follow.line()


def test_a_prover_that_hangs_does_not_keep_the_marker_waiting(programs, tmp_path, prover):
    prover.answers["GET /state"] = lambda: time.sleep(1)
    follow = start(programs, tmp_path, prover.port)
    send(follow, json.dumps(MARKER).encode())
    assert follow.until(lambda line: "marker" in line, 3) == {"marker": "written"}


def test_a_marker_is_put_in_place_whole(programs, tmp_path, prover):
    follow = start(programs, tmp_path, prover.port)
    send(follow, json.dumps(MARKER).encode())
    assert follow.until(lambda line: "marker" in line) == {"marker": "written"}
    assert json.loads((tmp_path / ".marker").read_text()) == MARKER
    assert [p.name for p in tmp_path.iterdir()] == [".marker"]


@pytest.mark.parametrize("line", [b"x", b"[]", b"\xff", b'{"a":"' + b"x" * 5000 + b'"}'])
def test_a_line_that_is_no_marker_is_refused(programs, tmp_path, prover, line):
    follow = start(programs, tmp_path, prover.port)
    send(follow, line)
    assert follow.until(lambda answer: "marker" in answer)["marker"] == "refused"
    assert not (tmp_path / ".marker").exists()


def test_it_ends_with_stdin(programs, tmp_path, prover):
    follow = start(programs, tmp_path, prover.port)
    follow.line()
    follow.process.stdin.close()
    assert follow.ends() == 0


def test_it_ends_with_stdin_although_nobody_reads(tmp_path, prover):
    rounds = iter(range(10**9))
    prover.answers["GET /state"] = lambda: (200, {"rounds": next(rounds), "padding": "x" * 30000})
    words = [PYTHON, *argv("follow", FollowConfig(root=str(tmp_path), health_port=prover.port))[1:]]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as follow:
        eventually(lambda: len(prover.asked) > 10)
        follow.stdin.close()
        assert follow.wait(5) == 0


def test_it_ends_when_its_reader_is_gone(tmp_path, prover):
    rounds = iter(range(10**9))
    prover.answers["GET /state"] = lambda: (200, {"rounds": next(rounds)})
    words = [PYTHON, *argv("follow", FollowConfig(root=str(tmp_path), health_port=prover.port))[1:]]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as follow:
        follow.stdout.close()
        assert follow.wait(5) == 0


def test_keeper_ends_at_sigterm_at_once(programs):
    keeper = programs.start("keeper", KeeperConfig())
    eventually(lambda: catches_sigterm(keeper))
    before = time.monotonic()
    keeper.process.terminate()
    assert keeper.ends() == 0
    assert time.monotonic() - before < 0.5


def catches_sigterm(running):
    status = Path(f"/proc/{running.process.pid}/status").read_text().splitlines()
    line = next(line for line in status if line.startswith("SigCgt"))
    return int(line.split()[1], 16) & 1 << (signal.SIGTERM - 1)
