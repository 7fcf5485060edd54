"""How runs end, each seen through the command: its exit code, its words, and what is left in the cluster."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from podgate_cli import SMALL, UNTIL_GO, Done, Place, Podgate, until

pytestmark = pytest.mark.cluster

HEEDS_STOP = "trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done"
"""A worker that ends with 0 when it is told to end: whatever ended it must not look like a success."""

RESULT = "/run/job/output/result.json"


def run(podgate: Podgate, script: str, *flags: str) -> Done:
    """Run a small worker with a shell to its end."""
    return podgate("run", "--json", *podgate.shell(podgate.run_id(), script, *flags))


def launched(podgate: Podgate, script: str, *flags: str) -> str:
    """Launch a small worker with a shell and return its run id."""
    run_id = podgate.run_id()
    done = podgate("launch", *podgate.shell(run_id, script, *flags))
    assert done.code == 0, done.err
    return run_id


def outcome(done: Done) -> tuple[Any, ...]:
    """What a program reads of an end."""
    assert done.out, done.err
    return done.code, *(done.json[key] for key in ("state", "exitCode", "reason", "diagnostic"))


# --- the worker's own doing ---


def test_a_failure_has_the_workers_code_and_its_own_word_for_it(podgate: Podgate) -> None:
    script = """echo '{"error": "worker_tests_failed", "secret": "hunter2"}'; exit 3"""

    done = run(podgate, script)

    assert outcome(done) == (3, "failed", 3, "worker_failed", "worker_tests_failed")
    assert "hunter2" not in done.out, "raw output never enters the record"
    assert (done.json["result"], done.json["workspace"]) == (None, None)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("exec python3 -c 'bytearray(400 << 20)'", id="itself"),
        pytest.param("python3 -c 'bytearray(400 << 20)'; exit 0", id="a child of one that ends with 0"),
    ],
)
def test_a_worker_out_of_memory_is_named_as_such(podgate: Podgate, script: str) -> None:
    done = run(podgate, script)

    assert outcome(done) == (137, "failed", 137, "oom_killed", None)


def test_a_command_that_is_not_there_is_no_failure_of_the_workers_own(podgate: Podgate, place: Place) -> None:
    run_id = podgate.run_id()

    flags = ("--json", "--run-id", run_id, "--image", podgate.image("busybox"), *SMALL)
    done = podgate("run", *flags, "--", "/nowhere/program")

    assert (done.code, done.json["state"], done.json["reason"]) == (125, "failed", "worker_start_failed")
    assert place.of_run(run_id) == set()


def test_a_worker_that_was_killed_has_failed_with_137(podgate: Podgate) -> None:
    run_id = launched(podgate, HEEDS_STOP)

    os.kill(until("the worker's process", lambda: first_process(run_id)), signal.SIGKILL)

    watched = podgate("watch", "--json", "--run-id", run_id)
    assert (watched.code, watched.json["state"], watched.json["reason"]) == (137, "failed", "worker_failed")


def first_process(run_id: str) -> int | None:
    """Find the process that is a worker's first: the bed's pods are processes of this machine."""
    for process in Path("/proc").iterdir():
        try:
            ours = f"PODGATE_RUN_ID={run_id}".encode() in (process / "environ").read_bytes().split(b"\0")
            if ours and "\nNSpid:" in (status := (process / "status").read_text()):
                numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
                if numbers[-1] == "1":
                    return int(process.name)
        except (OSError, ValueError):
            continue
    return None


# --- time ---


def test_a_worker_that_takes_too_long_has_timed_out(podgate: Podgate) -> None:
    done = run(podgate, HEEDS_STOP, "--timeout", "2")

    assert outcome(done) == (124, "failed", 124, "timed_out", None)


@pytest.mark.slow
def test_a_worker_ends_on_time_without_any_launcher(podgate: Podgate, place: Place) -> None:
    run_id = launched(podgate, HEEDS_STOP, "--timeout", "2")

    ended = until("the kubelet ends it", lambda: place.container(run_id, "worker").get("terminated"), seconds=60)

    assert ended["exitCode"] == 0, "it heeded the kubelet's signal, and is no success for all that"
    watched = podgate("watch", "--json", "--run-id", run_id)
    assert (watched.code, watched.json["state"], watched.json["reason"]) == (124, "failed", "timed_out")


# --- the cluster's doing ---


def test_an_evicted_run_is_lost_even_if_its_worker_ended_with_0(podgate: Podgate, place: Place) -> None:
    run_id = launched(podgate, HEEDS_STOP)
    watcher = podgate.start("watch", "--json", "--run-id", run_id)

    name = place.pod(run_id)["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/{place.namespace}/pods/{name}/eviction"
    place.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))

    watched = podgate.end(watcher)
    assert (watched.code, watched.json["state"], watched.json["reason"]) == (125, "lost", "evicted")
    collected = podgate("collect", "--json", "--run-id", run_id)
    assert (collected.code, collected.json["state"], collected.json["result"]) == (125, "lost", None)


def test_a_pod_that_someone_deleted_is_lost(podgate: Podgate, place: Place) -> None:
    run_id = launched(podgate, HEEDS_STOP)

    place.kubectl("delete", "pod", place.pod(run_id)["metadata"]["name"])

    watched = podgate("watch", "--json", "--run-id", run_id)
    assert (watched.code, watched.json["state"]) == (125, "lost")
    assert watched.json["reason"] in ("pod_deleted", "node_lost"), "never a success, never a stop"


@pytest.mark.slow
def test_an_image_that_cannot_be_pulled_fails_at_the_bound_with_the_first_useful_message(
    podgate: Podgate, place: Place
) -> None:
    run_id = podgate.run_id()
    absent = podgate.image("busybox").split("@")[0] + "@sha256:" + "0" * 64

    flags = ("--json", "--keep", "--run-id", run_id, "--image", absent, *SMALL)
    done = podgate.set(provision_seconds=15)("run", *flags)

    assert (done.code, done.error["code"]) == (125, "pod_start_failed"), done.err
    assert "cannot be pulled" in done.error["message"]
    assert "not found" in done.error["message"], "the registry's own words, not those of the back-off"
    kept = podgate("status", "--json", "--run-id", run_id).json
    assert (kept["state"], kept["reason"], kept["message"]) == ("failed", "pod_start_failed", done.error["message"])
    until("nothing is left of it", lambda: not place.of_run(run_id))


def test_a_pod_that_no_node_takes_says_so_meanwhile_and_fails_at_the_bound(podgate: Podgate, place: Place) -> None:
    run_id = podgate.run_id()
    size = ("--cpus", "32", "--memory-mb", "128", "--disk-mb", "64")

    flags = ("--json", "--run-id", run_id, "--image", podgate.image("busybox"), *size)
    process = podgate.set(provision_seconds=15).start("launch", *flags)
    until("the scheduler has said no", lambda: unschedulable(place, run_id))
    meanwhile = podgate("status", "--json", "--run-id", run_id).json
    done = podgate.end(process)

    assert (meanwhile["state"], "Insufficient cpu" in (meanwhile["message"] or "")) == ("pending", True), meanwhile
    assert (done.code, done.error["code"], done.error["stage"]) == (125, "pod_start_timeout", "provision"), done.err
    assert "Insufficient cpu" in done.error["message"]
    until("nothing is left of it", lambda: not place.of_run(run_id))


def unschedulable(place: Place, run_id: str) -> bool:
    """Tell whether the scheduler has looked at the pod."""
    conditions = (place.pod(run_id) or {}).get("status", {}).get("conditions", ())
    return any(each.get("reason") == "Unschedulable" for each in conditions)


# --- the workspace's own doing ---


def test_a_file_that_changes_while_it_is_read_fails_the_launch_by_name(
    podgate: Podgate, place: Place, tmp_path: Path
) -> None:
    run_id, tree, over = podgate.run_id(), tmp_path / "tree", threading.Event()
    tree.mkdir()
    writer = threading.Thread(target=keep_growing, args=(tree / "busy.log", over))
    writer.start()
    try:
        done = podgate("launch", "--json", *podgate.shell(run_id, "true", "--workspace", str(tree)))
    finally:
        over.set()
        writer.join()

    assert (done.code, done.error["code"]) == (125, "workspace_changed"), done.err
    assert "busy.log" in done.error["message"]
    until("nothing is left of it", lambda: not place.of_run(run_id))
    assert not place.worker_was_begun(run_id)


def keep_growing(path: Path, over: threading.Event) -> None:
    """Append to a file, a hundred times a second."""
    while not over.wait(0.01):
        with path.open("ab") as file:
            file.write(b"x")


# --- stop ---


@pytest.mark.parametrize(
    "point",
    ["create:ConfigMap:provisioning", "create:Pod", "create:NetworkPolicy", "replace:ConfigMap:releasing"],
)
def test_a_stop_at_any_stage_of_a_launch_wins(podgate: Podgate, place: Place, point: str) -> None:
    run_id = podgate.run_id()
    process = podgate.halting(point, signal.SIGSTOP, "launch", "--json", *podgate.shell(run_id, HEEDS_STOP))
    until("the launch stands still", lambda: stands_still(process.pid))

    stopped = podgate("stop", "--json", "--reason", "not wanted", "--run-id", run_id)
    process.send_signal(signal.SIGCONT)
    overtaken = podgate.end(process)

    handle = podgate.handle(run_id)
    final = {"handle": handle, "phase": "stopped", "state": "stopped", "reason": "stopped", "message": "not wanted"}
    assert (stopped.code, stopped.json) == (0, final), stopped.err
    assert (overtaken.code, overtaken.error["code"]) == (125, "launch_superseded"), overtaken.err
    until("nothing is left of it", lambda: not place.of_run(run_id))
    assert not place.worker_was_begun(run_id)
    assert podgate("status", "--json", "--run-id", run_id).json == final


def stands_still(pid: int) -> bool:
    """Tell whether a process was stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_stop_of_a_running_worker_ends_the_command_that_runs_it(podgate: Podgate, place: Place) -> None:
    run_id = podgate.run_id()
    process = podgate.start("run", "--json", *podgate.shell(run_id, HEEDS_STOP))
    until("the run is active", lambda: place.phase(run_id) == "active")

    stops = [podgate("stop", "--json", "--run-id", run_id) for _ in range(2)]

    assert [(each.code, each.json["state"]) for each in stops] == [(0, "stopped")] * 2, "again is harmless"
    assert outcome(podgate.end(process)) == (143, "stopped", 143, "stopped", None)


def test_a_stop_before_the_launch_lets_nothing_start(podgate: Podgate, place: Place) -> None:
    run_id = podgate.run_id()

    stopped = podgate("stop", "--json", "--run-id", run_id)
    launch = podgate("launch", *podgate.shell(run_id, HEEDS_STOP))
    ran = podgate("run", "--json", "--keep", *podgate.shell(run_id, HEEDS_STOP))

    assert (stopped.code, stopped.json["state"]) == (0, "stopped"), stopped.err
    assert (launch.code, launch.out.strip()) == (0, podgate.handle(run_id)), launch.err
    assert outcome(ran) == (143, "stopped", 143, "stopped", None)
    assert place.of_run(run_id) == set()
    assert not place.worker_was_begun(run_id)


def test_one_interrupt_at_the_terminal_stops_the_run(podgate: Podgate) -> None:
    process = podgate.start("run", *podgate.shell(podgate.run_id(), HEEDS_STOP))
    assert process.stdout.readline() == b"begun\n"

    process.send_signal(signal.SIGINT)

    done = podgate.end(process)
    assert done.code == 143, done.err


def test_a_second_interrupt_leaves_the_run_to_others(podgate: Podgate, place: Place) -> None:
    run_id = podgate.run_id()
    process = podgate.start("run", *podgate.shell(run_id, "trap '' TERM; echo begun; while :; do sleep 0.1; done"))
    assert process.stdout.readline() == b"begun\n"

    process.send_signal(signal.SIGINT)
    until("the stop is under way", lambda: (place.record(run_id) or {}).get("stop"))
    process.send_signal(signal.SIGINT)

    done = podgate.end(process, seconds=8)
    assert (done.code, podgate.handle(run_id) in done.err) == (125, True), done.err
    assert podgate("watch", "--run-id", run_id).code == 143, "any other process sees it end"


# --- one run id, one run ---


def test_a_second_launch_finds_the_first_and_another_spec_is_refused(podgate: Podgate, place: Place) -> None:
    run_id = launched(podgate, UNTIL_GO)
    uid = place.pod(run_id)["metadata"]["uid"]

    equal = podgate("launch", *podgate.shell(run_id, UNTIL_GO))
    different = podgate("launch", "--json", *podgate.shell(run_id, UNTIL_GO, "--env", "OTHER=1"))
    too_early = podgate("remove", "--json", "--run-id", run_id)

    assert (equal.code, equal.out.strip()) == (0, podgate.handle(run_id)), equal.err
    assert (different.code, different.error["code"]) == (125, "job_spec_conflict")
    assert (too_early.code, too_early.error["code"]) == (125, "job_not_terminal")
    assert (place.phase(run_id), place.pod(run_id)["metadata"]["uid"]) == ("active", uid), "it runs on"
    place.let_go(run_id)
    assert podgate("watch", "--run-id", run_id).code == 0


# --- results ---


@pytest.mark.parametrize(
    ("made", "diagnostic"),
    [
        pytest.param("""print('{"a": "%s"}' % ("x" * (65537 - 9)), end="")""", "result_too_large", id="64 KiB + 1"),
        pytest.param("print('{\"a\": 1')", "result_invalid", id="not JSON"),
        pytest.param("print('[1]')", "result_invalid", id="no object"),
        pytest.param("""print('{"runId": "someone-else"}')""", "result_run_mismatch", id="of another run"),
        pytest.param("", "result_missing", id="required and absent"),
    ],
)
def test_a_result_that_cannot_be_used_is_no_success(podgate: Podgate, made: str, diagnostic: str) -> None:
    script = f"python3 - > {RESULT} <<'END'\n{made}\nEND" if made else "true"

    done = run(podgate, script, "--require-result")

    assert outcome(done) == (125, "succeeded", 0, "completed", diagnostic)
    assert done.json["result"] is None


def test_a_result_of_exactly_64_kib_is_brought_back(podgate: Podgate) -> None:
    made = """print('{"a":"%s"}' % ("x" * (65536 - 8)), end="")"""

    done = run(podgate, f"python3 - > {RESULT} <<'END'\n{made}\nEND")

    assert (done.code, done.json["diagnostic"]) == (0, None), done.err
    assert done.json["result"] == {"a": "x" * (65536 - 8)}
