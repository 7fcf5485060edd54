from datetime import timedelta

import pytest

from records.errors import IllegalTransition
from records.model import Evidence, Phase, PodRef, Result
from records.transitions import (
    LEGAL,
    Ended,
    EvidenceNoted,
    LeaseRenewed,
    LeaseTaken,
    PodNamed,
    ReleaseBegun,
    Removed,
    ResultFilled,
    StopRequested,
    WorkerStarted,
    apply,
)

POD = PodRef(uid="pod-1", name="podgate-run-x")
OTHER_POD = PodRef(uid="pod-2", name="podgate-run-x")
DONE = Result(exit_code=0, reason="completed")
LATER = timedelta(seconds=60)


def release(now, epoch=1, pod=POD):
    return ReleaseBegun(epoch=epoch, pod=pod, evidence=Evidence(seed_sha256="s"), at=now)


def events(now):
    return [
        LeaseTaken("b", now + LATER, now + LATER),
        LeaseRenewed(1, now + LATER),
        PodNamed(1, POD),
        EvidenceNoted(Evidence(gate_exit=0)),
        release(now),
        WorkerStarted(now, now, now, now, {}),
        Ended(Phase.FAILED, Result(exit_code=3, reason="worker_failed"), now),
        StopRequested(now),
        ResultFilled(DONE.evolve(artifacts="absent")),
        Removed(now),
    ]


@pytest.mark.parametrize("index", range(10))
@pytest.mark.parametrize("phase", list(Phase))
def test_an_event_in_a_phase_the_table_does_not_name_is_refused(in_phase, now, phase, index):
    event = events(now)[index]
    record = in_phase(phase)
    if phase not in LEGAL[type(event)]:
        with pytest.raises(IllegalTransition, match="not in this phase"):
            apply(record, event)
    elif not (isinstance(event, Ended) and phase.terminal and phase is not Phase.FAILED):
        assert (
            apply(record, event).timeline[: len(record.timeline)] == record.timeline
            if phase is not Phase.FAILED
            else True
        )


def test_an_expired_lease_is_taken_over_with_the_next_epoch(fresh, now):
    lease = apply(fresh, LeaseTaken("b", now + LATER, now + timedelta(seconds=30))).lease
    assert (lease.holder, lease.epoch, lease.expires_at) == ("b", 2, now + LATER)


def test_a_live_lease_is_not_taken(fresh, now):
    with pytest.raises(IllegalTransition, match="held"):
        apply(fresh, LeaseTaken("b", now + LATER, now + timedelta(seconds=29)))


def test_taking_ones_own_live_lease_again_changes_nothing(fresh, now):
    assert apply(fresh, LeaseTaken("replica-a/1", now + LATER, now)) is fresh


def test_a_stopped_launch_is_not_taken_over(fresh, now):
    stopping = apply(fresh, StopRequested(now))
    with pytest.raises(IllegalTransition, match="stop"):
        apply(stopping, LeaseTaken("b", now + 2 * LATER, now + LATER))


@pytest.mark.parametrize("make", [lambda now: LeaseRenewed(1, now + LATER), lambda _: PodNamed(1, POD), release])
def test_a_launcher_that_lost_its_lease_writes_nothing(fresh, now, make):
    taken = apply(fresh, LeaseTaken("b", now + 2 * LATER, now + LATER))
    with pytest.raises(IllegalTransition, match="another's"):
        apply(taken, make(now))


def test_a_launch_failing_under_a_foreign_epoch_is_refused_and_an_observer_is_not(fresh, now):
    taken = apply(fresh, LeaseTaken("b", now + 2 * LATER, now + LATER))
    failed = Result(exit_code=125, reason="seed_failed")
    with pytest.raises(IllegalTransition):
        apply(taken, Ended(Phase.FAILED, failed, now, epoch=1))
    assert apply(taken, Ended(Phase.FAILED, failed, now)).phase is Phase.FAILED


def test_a_renewal_never_shortens_the_lease(fresh, now):
    assert apply(fresh, LeaseRenewed(1, now + timedelta(seconds=10))) is fresh


def test_the_release_is_refused_once_a_stop_is_recorded(fresh, now):
    with pytest.raises(IllegalTransition, match="stop"):
        apply(apply(fresh, StopRequested(now)), release(now))


def test_the_release_is_refused_for_another_pod_than_the_recorded_one(fresh, now):
    with pytest.raises(IllegalTransition, match="another pod"):
        apply(apply(fresh, PodNamed(1, POD)), release(now, pod=OTHER_POD))


def test_saying_the_release_twice_changes_nothing(in_phase, now):
    released = in_phase(Phase.RELEASING)
    again = apply(released, ReleaseBegun(1, released.pod, Evidence(start_id="s"), now + LATER))
    assert again is released


def test_a_run_has_one_pod_for_ever(fresh):
    with pytest.raises(IllegalTransition, match="another pod"):
        apply(apply(fresh, PodNamed(1, POD)), PodNamed(1, OTHER_POD))


def test_the_first_observer_of_the_start_fixes_the_deadline(in_phase, now):
    active = in_phase(Phase.ACTIVE)
    assert apply(active, WorkerStarted(now + LATER, now + LATER, now + LATER, now + LATER, {})) is active


def test_nothing_succeeds_that_was_not_released(fresh, now):
    with pytest.raises(IllegalTransition, match="cannot follow"):
        apply(fresh, Ended(Phase.SUCCEEDED, DONE, now))


@pytest.mark.parametrize("phase", [Phase.REMOVED, Phase.ACTIVE])
def test_a_run_ends_in_an_outcome_only(in_phase, now, phase):
    with pytest.raises(IllegalTransition, match="no outcome"):
        apply(in_phase(Phase.RELEASING), Ended(phase, DONE, now))


def test_an_outcome_may_be_said_again_and_is_never_another(in_phase, now):
    succeeded = in_phase(Phase.SUCCEEDED)
    assert apply(succeeded, Ended(Phase.SUCCEEDED, DONE, now + LATER)) is succeeded
    with pytest.raises(IllegalTransition, match="ended already"):
        apply(succeeded, Ended(Phase.LOST, Result(exit_code=1, reason="node_lost"), now))


def test_the_first_stop_stands(fresh, now):
    stopping = apply(fresh, StopRequested(now, "first"))
    assert apply(stopping, StopRequested(now + LATER, "second")) is stopping


def test_collect_fills_in_a_result_once(in_phase):
    found = DONE.evolve(artifacts="collected", result_artifact={"passed": 3})
    filled = apply(in_phase(Phase.SUCCEEDED), ResultFilled(found))
    assert apply(filled, ResultFilled(found)) is filled
    with pytest.raises(IllegalTransition, match="already"):
        apply(filled, ResultFilled(found.evolve(result_artifact={"passed": 4})))


def test_collect_cannot_change_the_outcome(in_phase):
    with pytest.raises(IllegalTransition, match="another outcome"):
        apply(in_phase(Phase.SUCCEEDED), ResultFilled(Result(exit_code=1, reason="completed")))


@pytest.mark.parametrize(
    "artifact", [{"a": "x" * 65_536}, {"a": float("nan")}, {"a": "\ud800"}], ids=["too large", "not JSON", "surrogate"]
)
def test_an_artifact_that_cannot_be_kept_is_refused(in_phase, artifact):
    with pytest.raises(IllegalTransition, match="artifact"):
        apply(in_phase(Phase.SUCCEEDED), ResultFilled(DONE.evolve(artifacts="collected", result_artifact=artifact)))


def test_an_artifact_nested_too_deeply_is_refused(in_phase):
    artifact = {}
    for _ in range(64):
        artifact = {"a": artifact}
    with pytest.raises(IllegalTransition, match="deeper"):
        apply(in_phase(Phase.SUCCEEDED), ResultFilled(DONE.evolve(artifacts="collected", result_artifact=artifact)))


def test_a_removed_run_keeps_its_evidence_and_drops_its_result(in_phase):
    removed = in_phase(Phase.REMOVED)
    assert (removed.result, removed.lease, removed.evidence.start_id) == (None, None, "s")


def test_the_timeline_tells_each_phase_once(in_phase):
    entered = [entry.phase for entry in in_phase(Phase.REMOVED).timeline]
    assert entered == [Phase.PROVISIONING, Phase.RELEASING, Phase.ACTIVE, Phase.SUCCEEDED, Phase.REMOVED]


def test_evidence_left_unsaid_stays():
    known = Evidence(pod_uid="p", image_ids={"worker": "w"}, warnings=("a",), blind_since=5.0)
    merged = known.merged(Evidence(pod_uid=None, gate_exit=0, image_ids={"keeper": "k"}, warnings=("b", "a")))
    assert merged == known.evolve(gate_exit=0, image_ids={"worker": "w", "keeper": "k"}, warnings=("a", "b"))


def test_a_prover_may_see_again():
    assert Evidence(blind_since=5.0).merged(Evidence(blind_since=None)).blind_since is None
