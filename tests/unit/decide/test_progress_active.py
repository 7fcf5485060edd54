"""How a run ends whose worker was seen started: the truth tables."""

from dataclasses import replace

import pytest
from looks import (
    PINNED,
    STANDING,
    active,
    at,
    deleted,
    ended,
    evicting,
    finish,
    line,
    lost,
    outcome,
    pod,
    probe_killed,
    report,
    stopping,
)
from looks import decided as decide

from launcher.cluster.views import Running, Terminated, Waiting
from launcher.decide.progress import Finish, NeedsProver, Noted, Unchanged, progress
from launcher.decide.prover_report import UNREAD
from records.transitions import EvidenceNoted, apply

UNKNOWN = Terminated(137, "ContainerStatusUnknown")


# --- the worker's own end ---


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (ended(0), ("succeeded", "completed", 0)),
        (ended(7), ("failed", "worker_failed", 7)),
        (ended(137), ("failed", "worker_failed", 137)),
        (ended(137, reason="OOMKilled"), ("failed", "oom_killed", 137)),
        (ended(0, reason="OOMKilled"), ("failed", "oom_killed", 137)),
        (Terminated(128, "StartError", "no such file", None, at(1)), ("failed", "worker_start_failed", 128)),
        (ended(0, reason="Error"), ("failed", "worker_failed", 125)),
    ],
)
def test_a_worker_that_ended_by_itself_ends_the_run(end: Terminated, expected: tuple) -> None:
    assert outcome(active(), pod(end), 12) == expected


@pytest.mark.parametrize("looked_at", [12, 3000])
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (ended(3, 10), ("failed", "worker_failed", 3)),
        (ended(0, 61), ("succeeded", "completed", 0)),
        (ended(0, 66), ("succeeded", "completed", 0)),
        (ended(0, 67), ("failed", "timed_out", 124)),
        (ended(143, 67), ("failed", "timed_out", 124)),
    ],
)
def test_when_it_ended_decides_not_when_it_is_looked_at(end: Terminated, expected: tuple, looked_at: float) -> None:
    assert outcome(active(), pod(end), looked_at) == expected


def test_node_times_are_compared_with_node_times() -> None:
    skewed = Terminated(0, "Completed", None, at(-86_400), at(-86_350))
    assert outcome(active(), pod(skewed), 60) == ("succeeded", "completed", 0)


@pytest.mark.parametrize(("seconds", "ends"), [(60.9, False), (61, True), (600, True)])
def test_a_worker_that_runs_at_the_deadline_is_timed_out_and_its_pod_goes(seconds: float, ends) -> None:
    step = decide(active(), pod(), seconds)
    assert isinstance(step, Finish if ends else Unchanged)
    if isinstance(step, Finish):
        assert (step.result.reason, step.result.exit_code, step.delete_pod) == ("timed_out", 124, True)


def test_the_pod_of_a_worker_that_ended_is_kept_for_its_files() -> None:
    assert not finish(active(), pod(ended(0)), 12).delete_pod


@pytest.mark.parametrize("worker", [Waiting("PodInitializing"), None])
def test_a_status_that_goes_back_or_vanishes_changes_nothing(worker: Waiting | None) -> None:
    seen = pod(worker or Running(at(1)))
    seen = replace(seen, containers=None) if worker is None else seen
    assert decide(active(), seen, 30) == Unchanged()


def test_a_running_worker_needs_no_further_request() -> None:
    assert progress(active(), pod(), at(30)) == Unchanged()


def test_no_end_is_decided_before_the_prover_was_asked() -> None:
    assert progress(active(), pod(ended(0)), at(30)) == NeedsProver()


# --- isolation ---


@pytest.mark.parametrize("code", [0, 3, 137])
@pytest.mark.parametrize("verdict", ["open", "intercepted", "leak"])
@pytest.mark.parametrize(("opened", "counts"), [(5, True), (10, True), (12, False)])
def test_openness_before_the_workers_end_is_lost_isolation_whatever_its_code(
    code: int, verdict: str, opened: float, counts
) -> None:
    open_rounds = [line(opened, verdict, standing=False, number=8), line(opened + 0.3, verdict, standing=False)]
    prover = report(line(1), *open_rounds, lost(opened + 0.5, verdict))
    phase, reason, _ = outcome(active(), pod(ended(code)), 20, prover)
    assert (reason == "isolation_lost") is counts
    assert phase == ("failed" if counts or code else "succeeded")


def test_a_success_that_turns_out_open_does_not_read_as_one() -> None:
    prover = report(line(5, "open", standing=False), line(5.3, "open", standing=False), lost(5.5))
    assert outcome(active(), pod(ended(0)), 20, prover) == ("failed", "isolation_lost", 125)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("blind", ("failed", "isolation_unproven", 137)),
        ("unusable", ("failed", "isolation_unproven", 137)),
        ("timeout", ("failed", "timed_out", 124)),
    ],
)
def test_the_other_verdicts_that_kill_have_their_own_names(verdict: str, expected: tuple) -> None:
    assert outcome(active(), pod(ended(137)), 20, report(line(1), lost(5, verdict))) == expected


def test_a_worker_killed_by_its_probe_while_the_proof_stood_was_starved_also_when_it_exits_0() -> None:
    starved = probe_killed(10, why="context deadline exceeded")
    for code in (0, 137):
        phase, reason, _ = outcome(active(), pod(ended(code)), 20, STANDING, starved)
        assert (phase, reason) == ("failed", "probe_starved")


def test_a_probe_that_killed_after_the_workers_end_killed_nothing() -> None:
    assert outcome(active(), pod(ended(0, 10)), 20, STANDING, probe_killed(12)) == ("succeeded", "completed", 0)


def test_a_503_without_a_log_is_the_worst_that_it_can_have_been() -> None:
    assert outcome(active(), pod(ended(137)), 20, UNREAD, probe_killed(10))[1] == "isolation_lost"
    assert outcome(active(timeout=5), pod(ended(137, 6)), 20, UNREAD, probe_killed(6))[1] == "timed_out"


def test_a_blind_prover_whose_probe_failed_proves_nothing() -> None:
    blind = report(line(1), line(8, "unavailable", standing=False))
    events = probe_killed(10, why="context deadline exceeded")
    assert outcome(active(), pod(ended(137)), 20, blind, events)[1] == "isolation_unproven"


def test_one_open_round_at_the_end_is_looked_at_again_for_a_while() -> None:
    prover = report(line(1), line(9.5, "open", standing=False, number=2))
    assert isinstance(decide(active(), pod(ended(0)), 12, prover), Unchanged)
    assert outcome(active(), pod(ended(3)), 40, prover)[1] == "worker_failed"


@pytest.mark.parametrize(("seen", "seconds"), [(pod(ended(0)), 40), (pod(ended(0), phase="Succeeded"), 12)])
def test_an_open_round_that_nothing_followed_makes_no_success(seen, seconds: float) -> None:
    step = finish(active(), seen, seconds, report(line(1), line(9.5, "open", standing=False, number=2)))
    assert (step.result.reason, step.evidence and step.evidence.end) == ("isolation_unproven", "unknown")


def test_an_open_round_that_a_proven_one_followed_was_none_but_is_not_called_isolated() -> None:
    prover = report(line(1), line(9.5, "open", standing=False), line(11.5, standing=False, number=3))
    step = finish(active(), pod(ended(0)), 12, prover)
    assert (step.result.reason, step.evidence and step.evidence.end) == ("completed", "unknown")


@pytest.mark.parametrize(
    ("prover", "end"),
    [
        (STANDING, "standing"),
        (UNREAD, "unknown"),
        (report(line(1), line(8, "unavailable", standing=False)), "blind"),
        (report(line(1), line(12, "open", standing=False), line(12.3, "open", standing=False), lost(13)), "standing"),
    ],
)
def test_evidence_says_what_the_prover_saw_at_the_workers_end(prover, end: str) -> None:
    evidence = finish(active(), pod(ended(0)), 30, prover).evidence
    assert evidence is not None
    assert (evidence.end, evidence.gate_exit) == (end, 0)


def test_lost_isolation_of_a_running_worker_is_told_at_its_deadline_and_by_its_name() -> None:
    prover = report(line(5, "open", standing=False), line(5.3, "open", standing=False), lost(5.5))
    step = finish(active(), pod(), 61, prover)
    assert (step.result.reason, step.delete_pod) == ("isolation_lost", True)


# --- disruptions ---


@pytest.mark.parametrize("code", [0, 137, 143])
@pytest.mark.parametrize(("began", "disrupted"), [(9, True), (10, True), (11, False)])
def test_what_ended_before_a_deletion_by_others_keeps_its_outcome_a_tie_does_not(
    code: int, began: float, disrupted
) -> None:
    phase, reason, _ = outcome(active(), deleted(pod(ended(code, 10)), began), 12)
    assert (reason == "pod_deleted") is disrupted
    assert phase == ("lost" if disrupted else "failed" if code else "succeeded")


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("EvictionByEvictionAPI", "evicted"),
        ("PreemptionByScheduler", "preempted"),
        ("DeletionByTaintManager", "node_lost"),
        ("TerminationByKubelet", "evicted"),
        ("SomethingNew", "evicted"),
    ],
)
def test_a_disruption_has_the_name_that_the_control_plane_gives_it(condition: str, reason: str) -> None:
    seen = deleted(pod(ended(0, 10), conditions=evicting(9, condition)), 9)
    assert outcome(active(), seen, 12) == ("lost", reason, 1)


@pytest.mark.parametrize(
    ("said", "reason"),
    [("Evicted", "evicted"), ("Preempting", "preempted"), ("Terminated", "node_shutdown"), ("NodeLost", "node_lost")],
)
def test_a_pod_that_its_node_ended_is_lost_by_that_name(said: str, reason: str) -> None:
    seen = pod(ended(137, 10), phase="Failed", reason=said, keeper=ended(137, 10))
    assert outcome(active(), seen, 12) == ("lost", reason, 1)


def test_a_pod_that_is_being_ended_is_waited_for_until_its_last_word() -> None:
    seen = deleted(pod(), 20)
    assert isinstance(decide(active(), seen, 25), Unchanged)
    step = finish(active(), seen, 35)
    assert (step.phase, step.result.reason, step.delete_pod) == ("lost", "pod_deleted", True)


def test_why_a_pod_is_being_ended_is_noted_once_while_it_is_there_to_say_it() -> None:
    seen = deleted(pod(conditions=evicting(20)), 20)
    step = decide(active(), seen, 21)
    assert isinstance(step, Noted)
    assert step.evidence.disruption == "evicted"
    known = apply(active(), EvidenceNoted(step.evidence))
    assert decide(known, seen, 22) == Unchanged(step.message)


def test_an_announced_disruption_alone_ends_nothing() -> None:
    assert decide(active(), pod(conditions=evicting(20)), 25) == Unchanged()
    assert outcome(active(), pod(conditions=evicting(20)), 61)[1] == "timed_out"


@pytest.mark.parametrize(
    "seen",
    [
        pod(UNKNOWN, phase="Failed"),
        pod(UNKNOWN, phase="Running"),
        replace(pod(phase="Failed"), containers=None),
        pod(phase="Failed"),
    ],
)
def test_an_end_that_nobody_saw_is_a_lost_node(seen) -> None:
    assert outcome(active(), seen, 30) == ("lost", "node_lost", 1)


def test_the_pods_own_deadline_without_a_workers_end_is_a_timeout() -> None:
    assert outcome(active(), pod(phase="Failed", reason="DeadlineExceeded"), 30)[1] == "timed_out"


# --- stop, keeper, another pod ---


@pytest.mark.parametrize("worker", [Running(at(1)), ended(0, 12), ended(137, 12), ended(143, 12)])
@pytest.mark.parametrize("deletion", [True, False])
def test_a_stop_is_a_stop_however_the_worker_took_it(worker, deletion) -> None:
    seen = deleted(pod(worker), 10) if deletion else pod(worker)
    step = finish(stopping(active()), seen, 12)
    assert (step.phase, step.result.reason, step.result.exit_code) == ("stopped", "stopped", 143)
    assert (step.result.message, step.delete_pod) == ("enough", isinstance(worker, Running))


def test_lost_isolation_comes_before_a_stop() -> None:
    prover = report(line(5, "open", standing=False), line(5.3, "open", standing=False), lost(5.5))
    assert outcome(stopping(active()), pod(), 12, prover)[1] == "isolation_lost"


def test_a_keeper_that_ended_alone_takes_the_results_with_it() -> None:
    seen = pod(keeper=ended(1, 20))
    assert isinstance(decide(active(), seen, 25), Unchanged)
    assert finish(active(), seen, 40).result.reason == "keeper_lost"


def test_a_worker_that_ended_after_its_keeper_keeps_its_own_outcome() -> None:
    assert outcome(active(), pod(ended(0, 30), keeper=ended(1, 20)), 31) == ("succeeded", "completed", 0)


@pytest.mark.parametrize(
    ("image_id", "other"),
    [
        (PINNED, False),
        ("mirror.test/other@sha256:" + "b" * 64, False),
        ("sha256:" + "c" * 64, False),
        ("registry.test/job@sha256:" + "c" * 64, True),
    ],
)
@pytest.mark.parametrize("worker", [Running(at(1)), ended(0)])
def test_another_digest_than_the_pinned_one_fails_the_run(worker, image_id: str, other) -> None:
    step = decide(active(), pod(worker, image_id=image_id), 12)
    assert (isinstance(step, Finish) and step.result.reason == "image_mismatch") is other


@pytest.mark.parametrize(("generation", "changed"), [(None, False), (1, False), (2, True), (7, True)])
def test_a_spec_that_changed_after_its_attestation_fails_the_run(generation: int | None, changed) -> None:
    step = decide(active(), pod(generation=generation), 12)
    assert isinstance(step, Finish) is changed
    if isinstance(step, Finish):
        assert (step.result.reason, step.delete_pod) == ("attestation_failed", True)
