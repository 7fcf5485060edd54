"""The verdict table: what one round's attempts mean."""

import errno

import pytest

from isolation.inpod.probe import Attempt, Greeting, judge, meaning

UP = "podgate-witness control deny=up ip=10.0.0.5 port=1"
DOWN = "podgate-witness control deny=down ip=10.0.0.5 port=1"
OTHER = "podgate-witness control deny=up ip=10.0.0.6 port=1"
ADDRESS = {"udp": False, "ip": "10.0.0.5", "port": 1}


def attempt(kind, text="", **more):
    made = Attempt(**{**ADDRESS, **more})
    made.kind, made.text = kind, text
    return made


def heard(text):
    return attempt("banner", text) if text else attempt("silent")


def denied(*kinds):
    return [attempt(kind, udp=bool(i % 2)) for i, kind in enumerate(kinds)]


OTHER_PORT = "podgate-witness control deny=up ip=10.0.0.5 port=2"
SILENT, REFUSED = denied(*["silent"] * 4), denied(*["refused"] * 4)


@pytest.mark.parametrize(
    ("before", "deny", "after", "verdict"),
    [
        (UP, SILENT, UP, "proven"),
        (UP, REFUSED, UP, "proven"),
        (OTHER_PORT, SILENT, OTHER_PORT, "unserved"),
        (OTHER_PORT, REFUSED, OTHER_PORT, "unserved"),
        (OTHER_PORT, SILENT, UP, "unserved"),
        (UP, denied("silent", "silent", "banner", "silent"), UP, "open"),
        (UP, denied("silent", "banner", "silent", "silent"), UP, "open"),
        (None, denied("banner", "silent", "silent", "silent"), None, "open"),
        (DOWN, denied("banner", "silent", "silent", "silent"), DOWN, "open"),
        (UP, denied("connected", "silent", "silent", "silent"), UP, "intercepted"),
        (None, denied("connected", "silent", "silent", "silent"), None, "intercepted"),
        (UP, denied("connected", "banner", "silent", "silent"), UP, "open"),
        (DOWN, SILENT, DOWN, "unserved"),
        (DOWN, REFUSED, UP, "unserved"),
        (UP, SILENT, DOWN, "unserved"),
        (None, SILENT, None, "unavailable"),
        (UP, SILENT, None, "unavailable"),
        (UP, SILENT, OTHER, "unavailable"),
        ("podgate-witness deny", SILENT, UP, "unavailable"),
        (UP, denied("local", "silent", "silent", "silent"), UP, "unusable"),
    ],
)
def test_a_round_means_what_the_table_says(before, deny, after, verdict):
    assert judge("4", heard(before), deny, [], heard(after)).verdict == verdict


def test_refusal_and_drop_are_told_apart():
    assert judge("4", heard(UP), SILENT, [], heard(UP)).by == "drop"
    assert judge("4", heard(UP), REFUSED, [], heard(UP)).by == "refusal"


def test_a_control_that_could_not_be_tried_is_unusable():
    assert judge("4", attempt("local", "EADDRNOTAVAIL"), [], [], None).verdict == "unusable"


@pytest.mark.parametrize("kind", ["banner", "connected"])
def test_a_target_that_was_reached_is_a_leak_by_name(kind):
    found = judge("4", heard(UP), SILENT, [attempt(kind, name="metadata")], heard(UP))
    assert (found.verdict, found.leaks) == ("leak", ["metadata"])


@pytest.mark.parametrize("kind", ["silent", "refused", "local"])
def test_a_target_that_was_not_reached_proves_with_the_rest(kind):
    assert judge("4", heard(UP), SILENT, [attempt(kind, name="metadata")], heard(UP)).verdict == "proven"


def test_a_target_that_could_not_be_tried_for_want_of_sockets_is_unusable():
    target = attempt("local", "EMFILE", name="metadata")
    target.code = errno.EMFILE
    assert judge("4", heard(UP), SILENT, [target], heard(UP)).verdict == "unusable"


@pytest.mark.parametrize(
    "text",
    [
        "podgate-witness control deny=up ip=fd00::1 port=1",
        "podgate-witness control deny=up ip=x port=1",
        "podgate-witness control deny=maybe ip=10.0.0.5 port=1",
        "HTTP/1.1 400",
    ],
)
def test_a_greeting_of_another_kind_or_family_is_none(text):
    assert Greeting.of(heard(text), "4") is None


@pytest.mark.parametrize("code", [errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENOBUFS, errno.ENETUNREACH, errno.EINVAL])
def test_what_the_call_itself_refuses_is_local(code):
    assert meaning(code, at_once=True) == "local"


@pytest.mark.parametrize("code", [errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES])
def test_what_the_network_answers_is_a_refusal(code):
    assert meaning(code, at_once=False) == "refused"
