import json

import pytest

from isolation import names
from launcher.errors import PodgateError
from launcher.progress import STAGES

TOKEN = names.token("r1")
HANDLE = f"jobs/{TOKEN}"
WORKER = "registry.example/worker@sha256:" + "d" * 64


def test_a_handle_names_namespace_and_run(podgate, script):
    podgate("status", HANDLE)
    assert (script.handle.id, script.settings.isolation.namespace) == (HANDLE, "jobs")


def test_a_run_id_names_the_run_in_the_settings_namespace(podgate, script):
    podgate("status", "--run-id", "r1", environ={"PODGATE_NAMESPACE": "elsewhere"})
    assert script.handle.id == f"elsewhere/{TOKEN}"


@pytest.mark.parametrize(
    "argv",
    [
        (),
        (HANDLE, "--run-id", "r1"),
        ("r1",),
        ("jobs/short",),
        (f"No_Label/{TOKEN}",),
        (HANDLE, "--namespace", "other"),
        (HANDLE, "more"),
    ],
    ids=["nothing", "both", "run id", "no token", "no namespace", "two namespaces", "too many"],
)
@pytest.mark.parametrize("command", ["status", "watch", "logs", "collect", "stop", "remove", "evidence"])
def test_a_name_that_is_none_is_wrong_usage(podgate, script, command, argv):
    answer = podgate(command, *argv, "--json")

    assert answer.code == 2
    assert json.loads(answer.err.splitlines()[-1])["error"]["code"] == "usage_invalid"
    assert script.calls == []


def test_status_has_exactly_the_documented_keys(podgate):
    assert json.loads(podgate("status", HANDLE, "--json").out) == {
        "handle": HANDLE,
        "phase": "succeeded",
        "state": "succeeded",
        "reason": "completed",
        "message": None,
    }


def test_status_of_a_failed_run_is_an_answer_and_no_failure(podgate, script):
    script.state, script.reason = "failed", "oom_killed"

    answer = podgate("status", HANDLE)

    assert (answer.code, answer.out) == (0, b"failed  oom_killed\n")


@pytest.mark.parametrize("command", ["status", "logs", "collect", "stop", "remove", "evidence"])
def test_a_run_that_is_not_there_is_podgates_failure(podgate, script, command):
    asked = {"evidence": "record"}.get(command, command)
    script.errors[asked] = PodgateError("job_not_found", "No such run.")

    answer = podgate(command, HANDLE)

    assert answer.code == 125
    assert answer.err.startswith("podgate: job_not_found: No such run.")


def test_watch_prints_changes_and_exits_like_run(podgate, script):
    script.state, script.exit_code, script.reason = "failed", 3, "worker_failed"

    answer = podgate("watch", HANDLE)

    assert (answer.code, answer.out) == (3, b"running\nfailed  worker_failed\n")


def test_watch_with_json_prints_one_object_at_the_end(podgate):
    printed = json.loads(podgate("watch", HANDLE, "--json").out)
    assert (printed["state"], printed["exitCode"]) == ("succeeded", 0)


def test_logs_are_the_workers_bytes(podgate, script):
    script.output = (b"\x00a", b"\xffb\n")
    assert podgate("logs", HANDLE, "-f").out == b"\x00a\xffb\n"


def test_logs_with_json_go_to_stderr(podgate):
    answer = podgate("logs", HANDLE, "--json")
    assert json.loads(answer.out) == {"handle": HANDLE, "bytes": 6}
    assert "hello\n" in answer.err


def test_collect_exits_like_run_and_prints_the_result(podgate, script):
    script.result = {"passed": 3}

    answer = podgate("collect", HANDLE)

    assert answer.code == 0
    assert answer.out.decode() == 'succeeded, exit code 0 (completed)\n{\n  "passed": 3\n}\n'


def test_collect_brings_the_workspace_back_on_demand(podgate, script, tmp_path):
    printed = json.loads(podgate("collect", HANDLE, "--into", str(tmp_path), "--json").out)
    assert (printed["workspace"]["path"], script.calls) == (str(tmp_path), ["collect", "materialize"])


def test_stop_says_what_became_of_the_run(podgate):
    assert podgate("stop", HANDLE, "--reason", "enough").out == b"stopped\n"


def test_remove_says_so(podgate):
    assert json.loads(podgate("remove", HANDLE, "--json").out) == {"handle": HANDLE, "phase": "removed"}


def test_launch_prints_the_handle(podgate):
    answer = podgate("launch", "--image", WORKER, "--run-id", "r1")
    assert (answer.code, answer.out.decode()) == (0, f"podgate/{TOKEN}\n")


def test_launch_with_json_tells_its_timings(podgate):
    printed = json.loads(podgate("launch", "--image", WORKER, "--run-id", "r1", "--json").out)

    assert (printed["handle"], printed["runId"]) == (f"podgate/{TOKEN}", "r1")
    assert list(printed["timings"]) == list(STAGES)
    assert printed["timings"]["ended"] is None


def test_evidence_answers_both_questions(podgate):
    text = podgate("evidence", HANDLE).out.decode()
    assert "Why was it allowed to start?" in text
    assert "Was it isolated to its end?" in text


def test_evidence_with_json_is_raw(podgate):
    assert json.loads(podgate("evidence", HANDLE, "--json").out) == {"runId": "r", "evidence": {}}
