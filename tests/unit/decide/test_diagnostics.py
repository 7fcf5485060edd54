import json

import pytest

from launcher.decide.diagnostics import BYTES, RESULT_BYTES, absent, diagnostic_of, judge_result

RUN = "run-1"


def line(**fields):
    return json.dumps(fields).encode() + b"\n"


def test_the_newest_code_of_the_last_lines_is_the_diagnostic():
    log = line(error="worker_first") + b"Traceback\n" + line(error="worker_second", detail="x") + b"bye\n"
    assert diagnostic_of(log) == "worker_second"


def test_only_the_last_eight_lines_count():
    assert diagnostic_of(line(error="worker_early") + b"noise\n" * 8) is None
    assert diagnostic_of(line(error="worker_early") + b"noise\n" * 7) == "worker_early"


@pytest.mark.parametrize(
    "error",
    [
        "isolation_lost",
        "worker_",
        "worker_Upper",
        "worker_with-dash",
        "worker_a b",
        "worker_a\n",
        "xworker_a",
        "worker_" + "a" * 58,
        "worker_failed",
        "worker_start_failed",
        7,
        None,
        ["worker_a"],
    ],
)
def test_a_word_outside_the_vocabulary_never_enters_the_record(error):
    assert diagnostic_of(line(error=error)) is None


@pytest.mark.parametrize("error", ["worker_a", "worker_2_of_3", "worker_" + "a" * 57])
def test_a_word_of_the_vocabulary_is_taken_as_it_is(error):
    assert diagnostic_of(line(error=error)) == error


def test_a_code_of_ours_hides_none_of_the_worker_s_own():
    assert diagnostic_of(line(error="worker_own") + line(error="worker_failed")) == "worker_own"


@pytest.mark.parametrize(
    "log",
    [
        b"",
        b"\xff\xfe\n",
        b'["worker_a"]\n',
        b'"worker_a"',
        b'x {"error":"worker_a"}\n',
        b'{"error":"worker_a","error":"worker_b"}\n',
        b"[" * 100_000,
    ],
)
def test_output_that_is_no_json_object_on_a_line_of_its_own_says_nothing(log):
    assert diagnostic_of(log) is None


def test_a_line_that_reaches_beyond_the_limit_is_cut_and_so_says_nothing():
    assert diagnostic_of(line(error="worker_a", padding="x" * BYTES)) is None


def test_an_object_of_this_run_is_collected():
    judged = judge_result(json.dumps({"runId": RUN, "passed": 3}).encode(), RUN)
    assert (judged.artifacts, judged.problem, judged.artifact) == ("collected", None, {"runId": RUN, "passed": 3})


def test_a_result_need_not_name_its_run():
    assert judge_result(b"{}", RUN).artifacts == "collected"


@pytest.mark.parametrize("named", ["run-2", None, 1, ["run-1"]])
def test_a_result_of_another_run_is_told_as_such(named):
    judged = judge_result(json.dumps({"runId": named}).encode(), RUN)
    assert (judged.artifacts, judged.problem, judged.artifact) == ("invalid", "result_run_mismatch", None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"a":NaN}',
        b'{"a":1,"a":2}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":' + b"[" * 65 + b"]" * 65 + b"}",
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json_object_that_can_be_kept_is_invalid(content):
    judged = judge_result(content, RUN)
    assert (judged.artifacts, judged.problem, judged.artifact) == ("invalid", "result_invalid", None)


def sized(size):
    return b'{"a":"' + b"x" * (size - 8) + b'"}'


def test_the_size_limit_is_exact():
    assert judge_result(sized(RESULT_BYTES), RUN).artifacts == "collected"
    assert judge_result(sized(RESULT_BYTES + 1), RUN).problem == "result_too_large"


def test_a_result_that_grows_when_it_is_written_again_is_too_large():
    numbers = b"[" + b",".join([b"1e9"] * 16_000) + b"]"
    assert len(numbers) < RESULT_BYTES
    assert judge_result(b'{"a":' + numbers + b"}", RUN).problem == "result_too_large"


@pytest.mark.parametrize(("required", "problem"), [(True, "result_missing"), (False, None)])
def test_a_missing_result_is_a_problem_only_when_the_spec_requires_it(required, problem):
    judged = absent(required=required)
    assert (judged.artifacts, judged.problem) == ("absent", problem)
