"""What a row of rounds is worth."""

import pytest

from isolation.inpod.probe import Round
from isolation.inpod.standing import Limits, Standing

LIMITS = Limits(timeout=100, grace=15, blind_after=300, unusable_after=30)


def make(*families, missing=(), limits=LIMITS):
    return Standing(list(families or ("4",)), list(missing), limits)


def note(standing, verdict, began, *, took=1.5, family="4"):
    seen = Round(family, verdict)
    seen.began = seen.looked = began
    seen.ended = began + took
    return standing.note(seen, seen.ended)


def proven(standing, *begins, family="4"):
    for began in begins:
        note(standing, "proven", began, family=family)
    return standing


def released():
    standing = proven(make(), 0, 0.25, 0.5)
    standing.release(3)
    return standing


def test_three_proven_rounds_in_a_row_stand():
    assert not proven(make(), 0, 0.25).standing
    assert proven(make(), 0, 0.25, 0.5).standing


def test_every_family_has_to_stand():
    standing = proven(make("4", "6"), 0, 0.25, 0.5)
    assert not standing.standing
    assert proven(standing, 0, 0.25, 0.5, family="6").standing


def test_a_pod_without_known_addresses_never_stands():
    assert not make("4", missing=["6"]).standing
    assert not Standing([], [], LIMITS).standing


def test_a_missing_family_keeps_a_proof_from_standing():
    standing = proven(make("4", missing=["6"]), 0, 0.25, 0.5)
    assert not standing.standing
    assert standing.why_not()[0] == "witness_family_missing"


def test_rounds_that_looked_at_one_moment_count_once():
    assert not proven(make(), 0, 0.01, 0.02, 0.03).standing


@pytest.mark.parametrize("verdict", ["open", "intercepted", "leak", "unusable", "unavailable", "unserved"])
def test_the_first_round_that_is_not_proven_fells_the_proof(verdict):
    standing = proven(make(), 0, 0.25, 0.5)
    note(standing, verdict, 0.75)
    assert not standing.standing
    assert standing.ever_stood


@pytest.mark.parametrize("verdict", ["unavailable", "unserved"])
def test_a_round_from_before_the_streak_that_only_failed_to_look_is_ignored(verdict):
    standing = proven(make(), 1, 1.25, 1.5)
    assert not note(standing, verdict, 0.5, took=3)
    assert standing.standing
    assert standing.last.verdict == "proven"


@pytest.mark.parametrize("verdict", ["open", "intercepted", "leak", "unusable"])
def test_openness_counts_whenever_its_round_began(verdict):
    standing = proven(make(), 1, 1.25, 1.5)
    assert note(standing, verdict, 0.5, took=3)
    assert not standing.standing


def test_rounds_in_flight_across_an_open_one_do_not_begin_a_streak():
    standing = make()
    note(standing, "open", 1.0, took=0.5)
    assert not proven(standing, 0.25, 0.5, 0.75, 1.0).standing
    assert proven(standing, 1.25, 1.5, 1.75).standing


def test_openness_before_the_release_is_waiting():
    standing = make()
    for began in range(10):
        note(standing, "open", began)
    assert standing.tick(20) is None


def test_openness_after_having_stood_is_named_before_release():
    standing = proven(make(), 0, 0.25, 0.5)
    note(standing, "open", 0.75)
    assert standing.why_not()[0] == "policy_not_enforced_before_release"


@pytest.mark.parametrize("verdict", ["open", "intercepted", "leak"])
def test_two_open_rounds_running_lose_the_run_for_good(verdict):
    standing = released()
    note(standing, verdict, 20)
    assert standing.tick(22) is None
    note(standing, verdict, 21)
    assert standing.tick(23) == verdict
    assert proven(standing, 30, 31, 32).tick(40) == verdict


def test_a_proven_round_between_two_open_ones_forgives():
    standing = released()
    note(standing, "open", 20)
    proven(standing, 21)
    note(standing, "open", 22)
    assert standing.tick(24) is None


def test_blindness_between_two_open_rounds_does_not_forgive():
    standing = released()
    note(standing, "open", 20)
    note(standing, "unavailable", 21)
    note(standing, "open", 22)
    assert standing.tick(24) == "open"


def test_one_open_round_before_the_release_does_not_count_afterwards():
    standing = proven(make(), 0, 0.25, 0.5)
    note(standing, "open", 0.75)
    proven(standing, 1, 1.25, 1.5).release(4)
    note(standing, "open", 20)
    assert standing.tick(22) is None


def test_thirty_seconds_of_unusable_rounds_lose_the_run():
    standing = released()
    for began in range(20, 53):
        note(standing, "unusable", began, took=0)
        assert standing.tick(began) == ("unusable" if began >= 50 else None)


def test_a_round_that_could_look_ends_unusability():
    standing = released()
    note(standing, "unusable", 20, took=0)
    note(standing, "unavailable", 40, took=0)
    note(standing, "unusable", 45, took=0)
    assert standing.tick(60) is None


def test_blindness_loses_the_run_after_its_time():
    standing = make(limits=Limits(1000, 15, 300, 30))
    proven(standing, 0, 0.25, 0.5).release(3)
    note(standing, "unavailable", 20, took=0)
    assert standing.blind_since == 20
    assert standing.tick(319) is None
    assert standing.tick(320) == "blind"


def test_blindness_that_is_only_recorded_loses_nothing():
    standing = make(limits=Limits(1000, 15, None, 30))
    proven(standing, 0, 0.25, 0.5).release(3)
    note(standing, "unserved", 20, took=0)
    assert standing.tick(900) is None
    assert standing.blind_since == 20


def test_a_proven_round_ends_blindness():
    standing = released()
    note(standing, "unavailable", 20, took=0)
    proven(standing, 30)
    assert standing.blind_since is None


def test_a_run_is_over_at_its_worker_s_first_probe_plus_timeout_plus_grace():
    standing = released()
    standing.asked(20)
    standing.asked(60)
    assert standing.tick(134.9) is None
    assert standing.tick(135) == "timeout"


def test_an_image_that_takes_long_to_pull_costs_the_worker_no_time():
    standing = released()
    assert standing.tick(10_000) is None


def test_nobody_can_begin_the_worker_s_time_before_the_release():
    standing = proven(make(), 0, 0.25, 0.5)
    standing.asked(1)
    standing.release(3)
    assert standing.worker_since is None


def test_a_second_release_changes_nothing():
    standing = released()
    standing.release(50)
    assert standing.released_at == 3


def test_a_proof_is_fresh_for_as_long_as_every_family_was_proven_lately():
    standing = proven(proven(make("4", "6"), 0, 0.25, 0.5), 0, 0.25, 0.5, family="6")
    assert standing.fresh(3.9, 2)
    assert not standing.fresh(4.1, 2)
    note(standing, "proven", 3, family="4")
    assert not standing.fresh(4.6, 2)
