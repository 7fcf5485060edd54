import json
import os
import signal

import pytest

from launcher.errors import PodgateError

WORKER = "registry.example/worker@sha256:" + "d" * 64
RUN = ("run", "--image", WORKER, "--run-id", "r1")


def error_of(answer) -> dict:
    return json.loads(answer.err.splitlines()[-1])["error"]


def test_output_is_passed_on_byte_for_byte_and_nothing_else_is_on_stdout(podgate, script):
    script.output = (b"\x00\xff", b"no newline")

    answer = podgate(*RUN, "--", "true")

    assert (answer.code, answer.out) == (0, b"\x00\xffno newline")


def test_steps_come_in_order_and_the_run_is_removed(podgate, script):
    podgate(*RUN)
    assert [c for c in script.calls if c != "logs"] == ["launch", "watch", "status", "collect", "remove"]


def test_json_has_exactly_the_documented_keys_and_output_goes_to_stderr(podgate, script, tmp_path):
    script.result = {"passed": 3}

    answer = podgate(*RUN, "--json", "--into", str(tmp_path / "out"))

    printed = json.loads(answer.out)
    assert list(printed) == [
        "handle", "state", "exitCode", "reason", "diagnostic", "result", "workspace", "timings",
    ]  # fmt: skip
    assert list(printed["timings"]) == ["created", "gate", "proven", "seeded", "released", "started", "ended"]
    assert all(isinstance(seconds, float) for seconds in printed["timings"].values())
    assert printed["result"] == {"passed": 3}
    assert printed["workspace"]["path"] == str(tmp_path / "out")
    assert printed["workspace"]["excluded"] == ["node_modules"]
    assert "hello\n" in answer.err


def test_without_a_terminal_no_progress_is_shown(podgate):
    assert "isolation proven" not in podgate(*RUN).err


@pytest.mark.parametrize(
    ("state", "worker", "reason", "expected"),
    [
        ("failed", 3, "worker_failed", 3),
        ("failed", 137, "worker_failed", 137),
        ("failed", 124, "timed_out", 124),
        ("failed", 137, "oom_killed", 137),
        ("stopped", 143, "stopped", 143),
        ("lost", 1, "evicted", 125),
        ("failed", 1, "isolation_lost", 125),
        ("failed", 128, "worker_start_failed", 125),
        ("failed", 0, "worker_failed", 125),
    ],
)
def test_exit_codes_say_whose_end_it_was(podgate, script, state, worker, reason, expected):
    script.state, script.exit_code, script.reason = state, worker, reason
    assert podgate(*RUN).code == expected


def test_a_result_that_cannot_be_used_is_no_success(podgate, script):
    script.diagnostic = "result_too_large"
    assert podgate(*RUN).code == 125


def test_the_command_line_behind_the_dashes_is_the_workers(podgate, script):
    podgate(*RUN, "--", "python3", "-c", "print(1)", "--json", "--", "x")
    assert script.specs[0].command == ("python3", "-c", "print(1)", "--json", "--", "x")


def test_a_run_without_an_id_gets_one(podgate, script):
    podgate("run", "--image", WORKER)
    assert script.specs[0].run_id.startswith("run-")
    assert len(script.specs[0].run_id) == len("run-") + 12


def test_flags_win_over_the_file(podgate, script, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(
        f"apiVersion: podgate.dev/v1\nkind: Job\nrunId: a\nimage: {WORKER}\n"
        "command: [x]\nargs: [y]\nenv: {A: file, B: file}\n"
    )

    podgate("run", str(file), "--run-id", "b", "--env", "A=flag", "--timeout", "5", "--", "z")

    spec = script.specs[0]
    assert (spec.run_id, spec.env, spec.timeout_seconds) == ("b", {"A": "flag", "B": "file"}, 5)
    assert (spec.command, spec.args) == (("z",), ())


def test_env_without_a_value_is_passed_on_from_here(podgate, script):
    podgate(*RUN, "--env", "COLOR", environ={"COLOR": "red"})
    assert script.specs[0].env == {"COLOR": "red"}


def test_paths_of_flags_may_lie_anywhere(podgate, script, tmp_path):
    podgate(*RUN, "--workspace", str(tmp_path))
    assert (script.specs[0].workspace, script.bound) == (tmp_path, [False])


def test_paths_of_a_file_are_bound_to_the_root(podgate, script, tmp_path):
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"image": WORKER, "workspace": str(tmp_path)}))

    podgate("run", str(file))

    assert script.bound == [True]


def test_a_flag_for_one_path_does_not_free_the_files_other(podgate, script, tmp_path):
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"image": WORKER, "input": "/etc/hostname"}))
    root = tmp_path / "root"
    root.mkdir()

    answer = podgate(
        "run", str(file), "--workspace", str(tmp_path), "--json", environ={"PODGATE_WORKSPACE_ROOT": str(root)}
    )

    assert error_of(answer)["code"] == "input_invalid"
    assert script.calls == []


@pytest.mark.parametrize(
    "text",
    ["[1]", "a: {", "\xff\xfe\x00", "image: x\nimage: y\n", "a: &a [1]\n" + "b: [" + "*a, " * 60 + "]\n"],
    ids=["list", "broken", "binary", "twice", "aliases"],
)
def test_a_file_that_is_no_spec_is_bad_input(podgate, script, tmp_path, text):
    file = tmp_path / "job.yaml"
    file.write_text(text, encoding="latin-1")

    answer = podgate("run", str(file), "--json")

    assert (answer.code, error_of(answer)["code"], script.calls) == (2, "job_spec_invalid", [])


def test_a_spec_with_faults_lists_them_all(podgate):
    answer = podgate("run", "--image", "python:3.12", "--timeout", "0", "--json")

    assert answer.code == 2
    assert {v["path"] for v in error_of(answer)["violations"]} == {"$.image", "$.timeoutSeconds"}


def test_a_launch_that_fails_says_why_where_to_look_and_leaves_nothing(podgate, script):
    script.errors["launch"] = PodgateError("policy_not_enforced", "The deny port answered.", stage="proof")

    answer = podgate(*RUN)

    assert answer.code == 125
    assert answer.err.startswith("podgate: policy_not_enforced: The deny port answered. (stage: proof)\n")
    assert "Where to look: the CNI" in answer.err
    assert script.calls == ["launch", "remove"]


def test_a_run_of_another_spec_is_not_touched(podgate, script):
    script.errors["launch"] = PodgateError("job_spec_conflict", "Another spec has this run id.")

    assert podgate(*RUN).code == 125
    assert script.calls == ["launch"]


def test_a_launch_that_another_took_over_is_followed_to_its_end(podgate, script):
    script.errors["launch"] = PodgateError("launch_superseded", "A newer lease.")
    assert podgate(*RUN).code == 0


def test_an_outcome_that_cannot_be_brought_back_keeps_the_run(podgate, script, tmp_path):
    script.errors["materialize"] = PodgateError("extract_symlink_escape", "x leads outside.")

    answer = podgate(*RUN, "--into", str(tmp_path / "out"))

    assert answer.code == 125
    assert "the run is kept" in answer.err
    assert "remove" not in script.calls


def test_a_failed_run_brings_no_workspace_back(podgate, script, tmp_path):
    script.state, script.exit_code, script.reason = "failed", 3, "worker_failed"

    podgate(*RUN, "--into", str(tmp_path / "out"))

    assert "materialize" not in script.calls


def test_keep_keeps(podgate, script):
    answer = podgate(*RUN, "--keep")
    assert "remove" not in script.calls
    assert script.planned_handle(script.specs[0]).id in answer.err


def test_a_removal_that_fails_is_said_and_changes_no_exit_code(podgate, script):
    script.errors["remove"] = PodgateError("pod_not_confirmed_gone", "still there")

    answer = podgate(*RUN)

    assert answer.code == 0
    assert "podgate remove podgate/" in answer.err


def test_output_that_is_lost_ends_nothing(podgate, script):
    script.errors["logs"] = PodgateError("cluster_unreachable", "gone")

    answer = podgate(*RUN)

    assert answer.code == 0
    assert "output is incomplete" in answer.err


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_stops_the_run(podgate, script):
    script.runs_until_stopped, script.before_end = True, interrupt

    answer = podgate(*RUN)

    assert answer.code == 143
    assert "stopping the run; press Ctrl-C again" in answer.err
    assert script.calls[-3:] == ["status", "collect", "remove"]


def test_sigterm_stops_the_run_like_ctrl_c(podgate, script):
    script.runs_until_stopped, script.before_end = True, lambda: os.kill(os.getpid(), signal.SIGTERM)
    assert podgate(*RUN).code == 143


def test_a_second_ctrl_c_leaves_the_run_and_prints_its_handle(podgate, script):
    script.runs_until_stopped, script.before_end = True, interrupt

    async def stop(handle, reason=None):
        interrupt()

    script.stop = stop

    answer = podgate(*RUN)

    assert answer.code == 125
    assert f"left running; its handle is {script.planned_handle(script.specs[0]).id}" in answer.err
    assert "remove" not in script.calls


def test_a_stop_that_fails_is_said_and_waiting_goes_on(podgate, script):
    script.runs_until_stopped, script.before_end = True, interrupt

    async def stop(handle, reason=None):
        script.stopped.set()
        raise PodgateError("cluster_unreachable", "no answer")

    script.stop = stop

    answer = podgate(*RUN)

    assert answer.code == 0
    assert "could not be stopped (cluster_unreachable: no answer)" in answer.err


def test_an_unforeseen_fault_has_a_code_and_tells_no_data(podgate, script):
    script.errors["launch"] = RuntimeError("Bearer s3cret")

    answer = podgate(*RUN, "--json")

    assert (answer.code, error_of(answer)["code"]) == (125, "internal_error")
    assert "s3cret" not in answer.err
