import pytest

from isolation import names
from launcher.cli import handles
from launcher.errors import PodgateError

TOKEN = names.token("r1")


def test_run_id_and_handle_name_the_same_run():
    assert handles.named(None, "r1").handle("jobs") == handles.named(f"jobs/{TOKEN}", None).handle("other")


def test_a_handle_may_repeat_the_namespace_flag():
    assert handles.named(f"jobs/{TOKEN}", None, namespace="jobs").namespace == "jobs"


@pytest.mark.parametrize(
    "text", ["", "/", f"/{TOKEN}", f"jobs/{TOKEN}/x", f"jobs/{TOKEN[:-1]}", f"jobs/{TOKEN.upper()}x"]
)
def test_what_is_no_handle_is_refused(text):
    with pytest.raises(PodgateError, match="usage_invalid"):
        handles.named(text, None)
