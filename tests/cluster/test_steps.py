"""Every step of a run from a process of its own, and launchers that are killed or stand still in the middle of one."""

import hashlib
import json
import signal
from pathlib import Path

import pytest
from podgate_cli import UNTIL_GO, Done, Place, Podgate, until

pytestmark = pytest.mark.cluster

LEASE = {"lease_seconds": 6, "renewal_seconds": 2, "abandoned_after_seconds": 1}
"""Short, so that a launch can be taken over, or given up, while a test waits."""

HANDS_BACK = (
    f"echo begun; {UNTIL_GO}; echo more >> kept; echo '{{\"answer\": 42}}' > /run/job/output/result.json; echo done"
)


def test_every_step_is_a_process_of_its_own(podgate: Podgate, place: Place, root: Path, tmp_path: Path) -> None:
    run_id, into = podgate.run_id(), tmp_path / "back"
    handle = podgate.handle(run_id)

    launched = podgate("launch", "--json", write_spec(podgate, root, run_id, HANDS_BACK))
    assert (launched.code, launched.json["handle"], launched.json["runId"]) == (0, handle, run_id), launched.err
    running = podgate("status", "--json", handle)
    assert running.json == {"handle": handle, "phase": "active", "state": "running", "reason": None, "message": None}
    early = podgate("collect", "--json", handle)
    assert (early.code, early.error["code"]) == (125, "job_not_terminal")

    watcher, follower = podgate.start("watch", handle), podgate.start("logs", "-f", "--run-id", run_id)
    assert follower.stdout.readline() == b"begun\n"
    assert watcher.stdout.readline().startswith(b"running")
    place.let_go(run_id)
    followed, watched = podgate.end(follower), podgate.end(watcher)
    assert (followed.code, followed.out) == (0, "done\n"), followed.err
    assert (watched.code, watched.out.split()[0]) == (0, "succeeded"), watched.err

    first, again = (podgate("collect", "--json", "--into", str(into), handle) for _ in range(2))
    assert (first.code, first.json["result"]) == (0, {"answer": 42}), first.err
    assert again.json == first.json, "collecting is repeatable"
    assert (into / "kept").read_text() == "seeded\nmore\n"
    logged = podgate("logs", handle)
    assert (logged.code, logged.out) == (0, "begun\ndone\n")
    counted = podgate("logs", "--json", handle)
    assert (counted.json, counted.err) == ({"handle": handle, "bytes": 11}, "begun\ndone\n")

    stopped = podgate("stop", "--json", handle)
    assert (stopped.code, stopped.json["state"]) == (0, "succeeded"), "what has ended keeps its outcome"
    removed = [podgate("remove", "--json", handle) for _ in range(2)]
    assert [(each.code, each.json) for each in removed] == [(0, {"handle": handle, "phase": "removed"})] * 2
    assert place.of_run(run_id) == set()
    for gone in ("status", "collect", "logs"):
        answer = podgate(gone, "--json", handle)
        assert (answer.code, answer.error["code"]) == (125, "job_removed"), gone
    why_it_was_safe(podgate, handle)


def why_it_was_safe(podgate: Podgate, handle: str) -> None:
    """Hold that the evidence is there after the removal, for programs and for people."""
    facts = podgate("evidence", "--json", handle).json
    assert (facts["gateExit"], facts["end"], facts["by"]) == (0, "standing", "drop")
    assert all(facts[key] for key in ("podDigest", "policyDigest", "seedSha256"))
    assert facts["rounds"]["proven"] >= 3
    told = podgate("evidence", handle)
    assert "Yes: the prover measured to the end and never found it open." in told.out


def test_a_run_without_a_name_anywhere_is_not_found(podgate: Podgate) -> None:
    run_id = podgate.run_id()

    answers = [
        podgate(step, "--json", "--run-id", run_id) for step in ("status", "collect", "logs", "remove", "evidence")
    ]

    assert [(a.code, a.error["code"], a.out) for a in answers] == [(125, "job_not_found", "")] * 5


def test_a_launcher_killed_after_the_release_is_not_missed(podgate: Podgate, place: Place, tmp_path: Path) -> None:
    run_id, work, into = podgate.run_id(), tmp_path / "work", tmp_path / "back"
    work.mkdir()
    (work / "kept").write_text("seeded\n")

    process = podgate.start("run", *podgate.shell(run_id, HANDS_BACK, "--workspace", str(work)))
    until("the run is active", lambda: place.phase(run_id) == "active")
    process.kill()
    place.let_go(run_id)

    watched = podgate("watch", "--json", "--run-id", run_id)
    assert (watched.code, watched.json["state"], watched.json["exitCode"]) == (0, "succeeded", 0), watched.err
    collected = podgate("collect", "--json", "--into", str(into), "--run-id", run_id)
    assert (collected.code, collected.json["result"]) == (0, {"answer": 42}), collected.err
    assert (into / "kept").read_text() == "seeded\nmore\n"


def test_a_launch_killed_before_the_release_is_taken_over(podgate: Podgate, place: Place) -> None:
    run_id, patient = podgate.run_id(), podgate.set(**LEASE)
    arguments = ("launch", "--json", *podgate.shell(run_id, UNTIL_GO))
    process = patient.start(*arguments)
    pod = until("the pod is there", lambda: place.pod(run_id), every=0.05)
    process.kill()
    assert place.phase(run_id) == "provisioning"

    too_early = patient(*arguments)
    held = place.record(run_id)
    assert (too_early.code, held["lease"]["epoch"], held["phase"]) == (0, 1, "provisioning"), "the lease still holds"
    until("the lease is over", lambda: taken_over(patient, place, run_id, arguments))

    assert place.phase(run_id) == "active"
    assert place.pod(run_id)["metadata"]["uid"] == pod["metadata"]["uid"], "there is one pod a run"


def taken_over(podgate: Podgate, place: Place, run_id: str, arguments: tuple[str, ...]) -> bool:
    """Launch once more; tell whether that took the launch over."""
    done = podgate(*arguments)
    assert (done.code, done.json["handle"]) == (0, podgate.handle(run_id)), done.err
    return place.record(run_id)["lease"]["epoch"] == 2


@pytest.mark.parametrize("point", ["create:Pod", "replace:ConfigMap:releasing"])
def test_a_launch_that_nobody_takes_over_is_abandoned(podgate: Podgate, place: Place, point: str) -> None:
    run_id, patient = podgate.run_id(), podgate.set(**LEASE)
    arguments = ("launch", "--json", *podgate.shell(run_id, UNTIL_GO))

    killed(patient, point, *arguments)
    last = until("an observer gives the launch up", lambda: ended(patient("status", "--json", "--run-id", run_id)))

    assert (last["phase"], last["reason"]) == ("failed", "launch_abandoned")
    assert podgate("watch", "--run-id", run_id).code == 125
    until("nothing is left of it", lambda: not place.of_run(run_id))
    assert not place.worker_was_begun(run_id)
    relaunched = patient(*arguments)
    assert (relaunched.code, place.phase(run_id)) == (0, "failed"), "terminal is terminal"


def test_a_launch_killed_between_record_and_marker_is_released_by_another(podgate: Podgate, place: Place) -> None:
    run_id, patient = podgate.run_id(), podgate.set(**LEASE)
    arguments = ("launch", "--json", *podgate.shell(run_id, UNTIL_GO))

    killed(patient, "replace:ConfigMap:releasing", *arguments)
    before = place.record(run_id)
    assert (before["phase"], "running" in place.container(run_id, "gate")) == ("releasing", True)
    until("the lease is over", lambda: taken_over(patient, place, run_id, arguments))

    after = place.record(run_id)
    assert after["phase"] == "active"
    kept = ("startId", "seedSha256", "podUid")
    assert [after["evidence"][key] for key in kept] == [before["evidence"][key] for key in kept]


def test_a_take_over_while_the_first_seed_streams_ends_that_seed(
    podgate: Podgate, place: Place, tmp_path: Path
) -> None:
    run_id, patient = podgate.run_id(), podgate.set(**LEASE)
    content = bytes(range(256)) * (200 << 12)  # streams for seconds, however late it is looked at
    work = tmp_path / "work"
    work.mkdir()
    (work / "large").write_bytes(content)
    size = ("--cpus", "0.1", "--memory-mb", "128", "--disk-mb", "512")
    where = ("--image", podgate.image("python"), "--run-id", run_id, *size, "--workspace", str(work))
    arguments = ("launch", "--json", *where, "--", "sh", "-c", "sha256sum large")

    first = patient.start(*arguments)
    until("the first seed streams", lambda: seeding(place, run_id), every=0.05)
    first.send_signal(signal.SIGSTOP)
    assert place.phase(run_id) == "provisioning"
    until("the lease is over", lambda: taken_over(patient, place, run_id, arguments), seconds=90)
    first.send_signal(signal.SIGCONT)

    overtaken = podgate.end(first)
    assert (overtaken.code, overtaken.error["code"]) == (125, "launch_superseded"), overtaken.err
    assert podgate("watch", "--run-id", run_id).code == 0, "the run is none the worse for it"
    assert podgate("logs", "--run-id", run_id).out.split()[0] == hashlib.sha256(content).hexdigest()


def seeding(place: Place, run_id: str) -> bool:
    """Tell whether the first bytes of a large file have arrived in the gate, and it has not gone on."""
    if "running" not in place.container(run_id, "gate"):
        return False
    return bool(place.inside(run_id, "gate", "find", "/run/podgate", "-name", "large", "-size", "+256k").strip())


def killed(podgate: Podgate, point: str, *arguments: str) -> None:
    """Launch with a process that is killed at ``point``."""
    done = podgate.end(podgate.halting(point, signal.SIGKILL, *arguments))
    assert done.code == -signal.SIGKILL, done.err


def ended(status: Done) -> dict | None:
    """Return a status that is final."""
    assert status.code == 0, status.err
    return None if status.json["state"] in ("pending", "running") else status.json


def write_spec(podgate: Podgate, root: Path, run_id: str, script: str) -> str:
    """Write a spec that names a workspace inside the root, and return its path."""
    workspace = root / "tree"
    workspace.mkdir()
    (workspace / "kept").write_text("seeded\n")
    spec = {
        "apiVersion": "podgate.dev/v1",
        "kind": "Job",
        "runId": run_id,
        "image": podgate.image("python"),
        "command": ["sh", "-c", script],
        "cpus": 0.1,
        "memoryMb": 128,
        "diskMb": 64,
        "workspace": str(workspace),
    }
    path = root / "job.json"
    path.write_text(json.dumps(spec))
    return str(path)
