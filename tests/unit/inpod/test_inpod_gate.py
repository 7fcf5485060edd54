"""The gate as a process: it opens for two keys, and every other end has its own code."""

import fcntl
import json
import os
import signal
import stat
import time

import pytest
from inpod_lab import POD_UID, ScriptedProver, eventually, free_port

from isolation.objects.programs import GateConfig

SEED = "a" * 64
START = "b" * 32
MARKER = {"podUid": POD_UID, "startId": START, "epoch": 1, "seedSha256": SEED}
STANDING = {"startId": START, "standing": True, "released": True, "verdict": None}


@pytest.fixture
def prover():
    scripted = ScriptedProver({"POST /release": (200, {"ok": True}), "GET /state": (200, STANDING)})
    yield scripted
    scripted.close()


@pytest.fixture
def root(tmp_path):
    made = tmp_path / "podgate"
    made.mkdir()
    return made


def start(programs, root, port, *, bound=30.0):
    config = GateConfig(root=str(root), health_port=port, bound_seconds=bound, termination_log=str(root.parent / "log"))
    return programs.start("gate", config, env={"PODGATE_POD_UID": POD_UID})


def ready(root):
    eventually((root / "current" / "output").is_dir)


def put_seed(root, body=None):
    (root / "current" / "seed.json").write_text(json.dumps({"epoch": 1, "sha256": SEED}) if body is None else body)


def put_marker(root, body=None, **more):
    (root / "marker.new").write_text(json.dumps({**MARKER, **more}) if body is None else body)
    (root / "marker.new").rename(root / ".marker")


def message(root):
    return json.loads((root.parent / "log").read_text())


def closed_by(programs, root, prover, *, seed=None, marker=None, **more):
    gate = start(programs, root, prover.port)
    ready(root)
    put_seed(root, seed)
    put_marker(root, marker, **more)
    return gate.ends()


def test_both_keys_open_the_gate(programs, root, prover):
    assert closed_by(programs, root, prover) == 0
    assert message(root) == {"code": "opened", "message": "both keys were there", "state": STANDING}
    assert prover.asked == ["POST /release", "GET /state"]


def test_the_directories_are_the_workers_groups_own(programs, root, prover):
    assert closed_by(programs, root, prover) == 0
    for area in ("workspace", "input", "output"):
        assert stat.S_IMODE((root / "current" / area).stat().st_mode) == 0o2770


def test_a_marker_from_before_its_start_is_nobodys_key(programs, root, prover):
    put_marker(root)
    gate = start(programs, root, prover.port, bound=0.5)
    assert gate.ends() == 44
    assert not (root / ".marker").exists()
    assert message(root)["code"] == "pod_start_timeout"


@pytest.mark.parametrize(
    "more",
    [
        {"podUid": "another"},
        {"epoch": 0},
        {"epoch": "1"},
        {"epoch": True},
        {"seedSha256": "c" * 64},
        {"seedSha256": None},
    ],
)
def test_a_marker_for_something_else_is_refused(programs, root, prover, more):
    assert closed_by(programs, root, prover, **more) == 42
    assert message(root)["code"] == "marker_refused"
    assert prover.asked == []


@pytest.mark.parametrize("marker", ["", "[]", "{", "x" * 5000])
def test_a_marker_that_is_none_is_refused(programs, root, prover, marker):
    assert closed_by(programs, root, prover, marker=marker) == 42


def test_a_marker_below_the_highest_epoch_is_refused(programs, root, prover):
    (root / ".epoch").write_text("2")
    assert closed_by(programs, root, prover) == 42


def test_a_marker_of_a_later_epoch_opens_what_an_earlier_one_seeded(programs, root, prover):
    (root / ".epoch").write_text("1")
    assert closed_by(programs, root, prover, epoch=3) == 0


@pytest.mark.parametrize("seed", ["", "{", "[]"])
def test_a_seed_that_is_not_whole_keeps_it_closed(programs, root, prover, seed):
    assert closed_by(programs, root, prover, seed=seed) == 45
    assert message(root)["code"] == "seed_failed"


def test_a_missing_directory_keeps_it_closed(programs, root, prover):
    gate = start(programs, root, prover.port)
    ready(root)
    put_seed(root)
    (root / "current" / "output").rmdir()
    put_marker(root)
    assert gate.ends() == 45


def test_a_link_in_a_directorys_place_keeps_it_closed(programs, root, prover):
    gate = start(programs, root, prover.port)
    ready(root)
    put_seed(root)
    (root / "current" / "output").rmdir()
    (root / "current" / "output").symlink_to(root)
    put_marker(root)
    assert gate.ends() == 45


@pytest.mark.parametrize(("told", "code"), [(40, 40), (41, 41), (42, 42), (0, 41), (None, 41), ("40", 41)])
def test_what_the_prover_refuses_is_the_gates_own_code(programs, root, prover, told, code):
    prover.answers["POST /release"] = (
        409,
        {"ok": False, "exit": told, "code": "policy_not_enforced", "message": "open"},
    )
    assert closed_by(programs, root, prover) == code
    assert message(root)["code"] == "policy_not_enforced"
    assert message(root)["state"] == STANDING


def test_an_answer_that_only_looks_like_success_keeps_it_closed(programs, root, prover):
    prover.answers["POST /release"] = (200, {"ok": "yes"})
    assert closed_by(programs, root, prover) == 41


def test_a_prover_that_is_away_keeps_it_closed(programs, root):
    gate = start(programs, root, free_port())
    ready(root)
    put_seed(root)
    put_marker(root)
    assert gate.ends() == 41


def test_a_prover_killed_after_the_release_keeps_it_closed(programs, root, prover):
    prover.answers["GET /state"] = None
    assert closed_by(programs, root, prover) == 41


def test_a_prover_restarted_after_the_release_keeps_it_closed(programs, root, prover):
    prover.answers["GET /state"] = (200, {**STANDING, "startId": "c" * 32})
    assert closed_by(programs, root, prover) == 41
    assert message(root)["code"] == "gate_restarted"


@pytest.mark.parametrize("more", [{"standing": False}, {"verdict": "open"}])
def test_a_proof_that_fell_after_the_release_keeps_it_closed(programs, root, prover, more):
    prover.answers["GET /state"] = (200, {**STANDING, **more})
    assert closed_by(programs, root, prover) == 40


def test_a_release_that_the_prover_forgot_keeps_it_closed(programs, root, prover):
    prover.answers["GET /state"] = (200, {**STANDING, "released": False})
    assert closed_by(programs, root, prover) == 41


def test_a_signal_ends_it_at_once(programs, root, prover):
    gate = start(programs, root, prover.port)
    ready(root)
    before = time.monotonic()
    gate.process.send_signal(signal.SIGTERM)
    assert gate.ends() == 43
    assert time.monotonic() - before < 1
    assert message(root)["code"] == "stopped"


def test_a_signal_between_release_and_exit_keeps_it_closed(programs, root, prover):
    gate = start(programs, root, prover.port)

    def state():
        os.kill(gate.process.pid, signal.SIGTERM)
        return 200, STANDING

    prover.answers["GET /state"] = state
    ready(root)
    put_seed(root)
    put_marker(root)
    assert gate.ends() == 43


def test_a_receiver_at_work_is_not_raced(programs, root, prover):
    gate = start(programs, root, prover.port)
    ready(root)
    put_seed(root)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        put_marker(root)
        put_seed(root, json.dumps({"sha256": "d" * 64}))
        assert prover.asked == []
    assert gate.ends() == 42


def test_a_state_that_is_too_long_for_the_message_is_left_out(programs, root, prover):
    prover.answers["GET /state"] = (200, {**STANDING, "leaks": ["x" * 5000]})
    assert closed_by(programs, root, prover) == 0
    assert message(root)["state"] is None


def test_storage_that_cannot_be_used_keeps_it_closed(programs, tmp_path):
    (tmp_path / "file").write_text("")
    gate = start(programs, tmp_path / "file", free_port())
    assert gate.ends() == 45
