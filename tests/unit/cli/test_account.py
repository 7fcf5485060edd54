from datetime import UTC, datetime

import pytest

from launcher.cli.account import account
from records.model import Evidence, Phase, Record, Result, Rounds, TimelineEntry

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PROVEN = Evidence(
    pod_uid="u",
    pod_digest="p" * 64,
    policy_digest="q" * 64,
    policy_name="podgate-run-x",
    start_id="s",
    witness_backends={"4": "192.0.2.7"},
    rounds=Rounds(count=9, proven=7, standing_since=1767323045.5),
    by="drop",
    policy_latency_seconds=0.4,
    node_exposure=("kubelet 192.0.2.1:10250",),
    seed_sha256="e" * 64,
    seed_bytes=2048,
    gate_exit=0,
    end="standing",
    warnings=("runtime_class_unset",),
)


def told(phase=Phase.SUCCEEDED, evidence=PROVEN, reason="completed", **fields) -> str:
    record = Record(
        token="0" * 20,
        run_id="r",
        spec_hash="c" * 64,
        phase=phase,
        created_at=AT,
        provision_by=AT,
        disk_mb=64,
        timeout_seconds=60,
        evidence=evidence,
        result=Result(exit_code=0, reason=reason) if phase.terminal else None,
        timeline=(TimelineEntry(phase=phase, at=AT),),
        **fields,
    )
    return "\n".join(account(record))


def test_a_released_run_tells_proof_objects_seed_and_exposure():
    text = told()
    for part in (
        "7 of 9 rounds proven",
        "packets to it were dropped",
        "0.4 s after",
        "IPv4 192.0.2.7",
        "2.0 KiB",
        "kubelet 192.0.2.1:10250",
        "runtime_class_unset: No runtime class",
        "2026-01-02T03:04:05.000Z  succeeded",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("end", "answer"),
    [
        ("standing", "Yes:"),
        ("timeout", "Yes:"),
        ("open", "No: the deny port could be reached"),
        ("leak", "No: a target"),
        ("blind", "Not known to the last moment: the witness did not answer"),
        ("unusable", "Not known to the last moment: the prover could not open"),
        ("unknown", "Not known:"),
        (None, "Not known:"),
    ],
)
def test_isolation_to_the_end_is_never_claimed_without_the_provers_word(end, answer):
    assert answer in told(evidence=PROVEN.model_copy(update={"end": end}))


def test_blindness_beyond_the_limit_is_a_no():
    text = told(Phase.FAILED, PROVEN.model_copy(update={"end": "blind"}), reason="isolation_unproven")
    assert "No: the witness did not answer the prover for longer than the limit." in text


def test_a_run_that_was_never_released_says_that_nothing_ran():
    text = told(Phase.FAILED, PROVEN.model_copy(update={"gate_exit": 40, "gate_message": "no standing proof"}))
    assert "It was not: the gate never opened" in text
    assert "Nothing ran that would have had to be isolated." in text
    assert "no standing proof" in text


def test_a_run_under_way_is_not_judged():
    assert "The run has not ended." in told(Phase.ACTIVE, PROVEN.model_copy(update={"end": None}))


def test_openness_is_said_while_the_run_is_under_way():
    assert "No: the deny port could be reached" in told(Phase.ACTIVE, PROVEN.model_copy(update={"end": "open"}))
