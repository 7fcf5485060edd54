"""What the prover's state means for a launch, as a truth table."""

from dataclasses import replace

import pytest

from launcher.decide.proof import LastRound, ProverState, Refuse, Stands, Waiting, families_missing, judge
from launcher.errors import CODES, PodgateError

STANDING = ProverState(
    start_id="a" * 32, standing=True, ever_stood=True, standing_since=10.0, last=LastRound("proven", "4", "", 0.1)
)
YOUNG = ProverState(start_id="a" * 32, standing=False, ever_stood=False)

ROUNDS = {
    "open": "policy_not_enforced",
    "intercepted": "policy_intercepted",
    "leak": "policy_leak",
    "unserved": "witness_unserved",
    "unavailable": "witness_unavailable",
    "unusable": "probe_unusable",
}


def after(verdict: str, state: ProverState, detail: str = "") -> ProverState:
    return replace(state, last=LastRound(verdict, "6", detail, 0.1))


def fallen(verdict: str) -> ProverState:
    return replace(after(verdict, STANDING), standing=False, standing_since=None)


@pytest.mark.parametrize("state", [None, YOUNG, *(after(verdict, YOUNG) for verdict in ROUNDS)])
def test_before_the_bound_nothing_that_is_not_proven_is_more_than_waiting(state):
    assert isinstance(judge(None, state, bound_over=False), Waiting)


@pytest.mark.parametrize(("verdict", "code"), ROUNDS.items())
def test_at_the_bound_the_last_round_names_the_code(verdict, code):
    refusal = judge(None, after(verdict, YOUNG), bound_over=True)

    assert isinstance(refusal, Refuse)
    assert refusal.code == code
    assert "IPv6" in refusal.message


def test_a_proven_round_of_the_other_family_does_not_hide_the_open_one():
    state = replace(YOUNG, last=LastRound("proven", "4", "", 0.1), last_bad=LastRound("open", "6", "answered", 0.2))

    refusal = judge(None, state, bound_over=True)

    assert isinstance(refusal, Refuse)
    assert refusal.code == "policy_not_enforced"
    assert "IPv6" in refusal.message


@pytest.mark.parametrize("state", [None, YOUNG])
def test_a_prover_that_measured_nothing_within_the_bound_is_unusable(state):
    assert judge(None, state, bound_over=True) == Refuse("probe_unusable", judge(None, state, bound_over=True).message)


def test_a_family_without_a_witness_has_its_own_code():
    verdict = judge(None, after("unavailable", YOUNG, "witness_family_missing"), bound_over=True)

    assert isinstance(verdict, Refuse)
    assert verdict.code == "witness_family_missing"


@pytest.mark.parametrize("bound_over", [False, True])
@pytest.mark.parametrize("first", [None, STANDING])
def test_a_proof_that_stands_counts_also_at_the_bound(first, bound_over):
    assert judge(first, STANDING, bound_over=bound_over) == Stands(STANDING)


@pytest.mark.parametrize("first", [None, STANDING])
@pytest.mark.parametrize(("verdict", "code"), ROUNDS.items())
def test_a_proof_that_fell_is_refused_at_once_with_the_variant_of_its_code(first, verdict, code):
    refusal = judge(first, fallen(verdict), bound_over=False)

    assert isinstance(refusal, Refuse)
    assert refusal.code == f"{code}_before_release"


def test_a_fall_between_two_looks_shows_by_the_other_time_since_when_it_stands():
    again = replace(STANDING, standing_since=12.5)

    assert isinstance(judge(STANDING, again, bound_over=False), Refuse)


def test_another_prover_than_the_one_that_stood_is_a_restart():
    other = replace(STANDING, start_id="b" * 32)

    verdict = judge(STANDING, other, bound_over=False)

    assert isinstance(verdict, Refuse)
    assert verdict.code == "gate_restarted"


def test_every_code_that_a_round_can_become_is_in_the_catalogue():
    for code in ROUNDS.values():
        assert {code, f"{code}_before_release"} <= set(CODES)
        PodgateError(code, "")


@pytest.mark.parametrize(
    ("ips", "witness", "missing"),
    [
        ((), {"4": "10.0.0.1"}, ()),
        (("10.1.1.1",), {"4": "10.0.0.1"}, ()),
        (("10.1.1.1", "fd00::1"), {"4": "10.0.0.1", "6": "fd01::1"}, ()),
        (("10.1.1.1", "fd00::1"), {"4": "10.0.0.1"}, ("6",)),
        (("fd00::1",), {"4": "10.0.0.1"}, ("6",)),
    ],
)
def test_each_family_of_the_pod_needs_an_address_of_the_witness(ips, witness, missing):
    assert families_missing(ips, witness) == missing


@pytest.mark.parametrize("line", [{}, {"waiting": "…"}, {"marker": "written"}, {"startId": 7}])
def test_a_line_that_is_no_state_is_none(line):
    assert ProverState.of(line) is None


def test_a_state_is_read_as_the_prover_says_it():
    state = ProverState.of(
        {
            "startId": "c" * 32,
            "standing": True,
            "everStood": True,
            "standingSince": 5.5,
            "rounds": 9,
            "last": {"verdict": "proven", "family": "4", "detail": "", "age": 0.25},
            "firstRoundAt": 1.0,
            "firstGoodAt": 3.0,
            "openUntil": 2.5,
            "nodeExposure": ["kubelet 10.0.0.1:10250"],
        }
    )

    assert state is not None
    assert state.last == LastRound("proven", "4", "", 0.25)
    assert state.policy_latency_seconds == 1.5
    assert state.node_exposure == ("kubelet 10.0.0.1:10250",)
