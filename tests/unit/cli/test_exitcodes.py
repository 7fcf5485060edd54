from hypothesis import given
from hypothesis import strategies as st

from launcher.cli import exitcodes
from launcher.errors import CODES


@given(st.sampled_from(["failed", "stopped", "lost"]), st.integers(-1, 300), st.sampled_from(sorted(CODES)))
def test_a_run_that_did_not_succeed_is_never_0(state, code, reason):
    assert 1 <= exitcodes.of_run(state, code, reason) <= 255


def test_only_bad_input_is_2():
    assert {code for code in CODES if exitcodes.of_error(code) == 2} == {
        "setting_invalid", "job_spec_invalid", "usage_invalid",
    }  # fmt: skip
