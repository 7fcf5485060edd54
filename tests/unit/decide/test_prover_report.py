import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.decide.prover_report import BYTES, UNREAD, ProverReport

T = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds):
    return (T + timedelta(seconds=seconds)).timestamp()


def seen(seconds, verdict="proven", *, number=1, family="4", standing=None, **more):
    standing = verdict == "proven" if standing is None else standing
    return {
        "round": number, "at": at(seconds), "family": family, "verdict": verdict, "took": 0.5, "standing": standing,
    } | more  # fmt: skip


def latched(seconds, verdict):
    return {"verdict": verdict, "at": at(seconds), "detail": "why"}


def report(*lines):
    return ProverReport.of_log(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def test_a_proof_that_stands_at_the_end_of_the_log_stands():
    found = report({"prover": "started", "startId": "s"}, seen(0), seen(15, number=2))
    assert (found.standing, found.start_id, found.end(None)) == (True, "s", "standing")


@pytest.mark.parametrize("log", [b"", b"unable to retrieve container logs for containerd://0", b"\xff\n[1]\n7\nnull\n"])
def test_a_log_without_a_word_of_the_prover_says_nothing(log):
    found = ProverReport.of_log(log)
    assert (found, found.end(None), found.standing) == (UNREAD, "unknown", False)


def test_openness_counts_from_the_begin_of_the_first_of_the_rounds_that_led_to_the_verdict():
    found = report(seen(0), seen(15, "open"), seen(15.3, "open"), latched(15.3, "open"))
    assert found.lost_before == at(14.5)


@pytest.mark.parametrize(("finished", "lost"), [(13, False), (14, True), (15, True), (600, True)])
def test_a_worker_that_ended_before_the_first_open_round_was_isolated_and_a_tie_is_a_loss(finished, lost):
    found = report(seen(0), seen(15, "open"), seen(15.3, "open"), latched(15.3, "open"))
    assert found.lost_while_alive(T + timedelta(seconds=finished)) is lost


def test_the_end_of_a_worker_that_was_isolated_is_told_from_the_rounds_before_it():
    found = report(seen(0), seen(15, "open"), seen(15.3, "open"), latched(15.3, "open"))
    assert found.end(T + timedelta(seconds=5)) == "standing"


def test_a_verdict_concerns_every_worker_that_still_runs():
    assert report(latched(5, "blind")).lost_while_alive(None)


def test_a_verdict_whose_rounds_are_not_in_the_log_any_more_has_an_earliest_moment():
    found = report(latched(100, "leak"))
    assert at(95) < found.lost_before < at(100)


def test_the_first_verdict_is_for_good():
    assert report(latched(1, "open"), latched(2, "timeout")).verdict == "open"


def test_an_open_round_in_another_family_does_not_end_the_openness_of_this_one():
    found = report(seen(1, "open", family="6"), seen(1.1), seen(1.3, "open", family="6"), latched(1.3, "open"))
    assert found.lost_before == at(0.5)


def test_one_open_round_leaves_the_matter_undecided():
    assert report(seen(0), seen(1, "open")).undecided
    assert not report(seen(0), seen(1, "open"), latched(1.2, "open")).undecided
    assert not report(seen(0), seen(1, "open"), seen(1.3)).undecided


def test_a_proof_that_never_comes_to_stand_again_hides_a_verdict():
    found = report(*(seen(n, standing=False, number=n) for n in range(8)))
    assert (found.fallen_unseen, found.end(None)) == (True, "unknown")


def test_a_round_that_does_not_count_is_not_the_last_word():
    found = report(seen(0), seen(1, "unavailable", counted=False))
    assert found.end(None) == "standing"


def test_blindness_has_a_begin_and_is_taken_back_when_the_prover_sees_again():
    blind = report(seen(0), seen(15, "unavailable", number=2), seen(16, "unserved", number=3))
    assert blind.evidence(None, None).blind_since == at(15)
    assert blind.evidence(None, None).end == "blind"
    assert report(seen(15, "unavailable"), seen(16)).evidence(None, None).blind_since is None


def test_evidence_carries_the_newest_round():
    rounds = report(seen(0, number=7), seen(15, number=8)).evidence(None, None).rounds
    assert (rounds.count, rounds.last_at, rounds.last_verdict) == (8, at(15), "proven")


def test_an_overlong_line_is_not_the_prover_s():
    assert report({**latched(1, "open"), "detail": "x" * 5000}).verdict is None


def test_only_the_log_s_end_is_read():
    found = ProverReport.of_log(json.dumps(latched(1, "open")).encode() + b"\n" + b"x" * BYTES)
    assert found.verdict is None


_ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("open"),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
_LINES = st.dictionaries(
    st.sampled_from(["round", "at", "verdict", "prover", "startId", "family", "took", "standing", "detail", "counted"]),
    _ODD,
)


@given(st.lists(_LINES, max_size=6))
def test_no_log_is_so_odd_that_reading_it_fails(lines):
    found = report(*lines)
    assert found.end(T) in {"unknown", "standing", "open", "intercepted", "leak", "blind", "unusable", "timeout"}
    found.evidence(None, T)
