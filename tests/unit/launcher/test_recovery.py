from datetime import timedelta

import pytest
from stage_cluster import NOW, TOKEN, fresh

from launcher.decide.recovery import (
    Abandon,
    PodFact,
    ReturnHandle,
    SpecConflict,
    TakeOver,
    abandoned,
    abandoned_result,
    recover,
)
from records.birth import tombstone
from records.model import Evidence, Phase, PodRef, Result
from records.transitions import Ended, PodNamed, ReleaseBegun, Removed, StopRequested, WorkerStarted, apply

POD = PodRef(uid="pod-1", name="n")
END = Result(exit_code=1, reason="worker_failed")
EXPIRED = NOW + timedelta(seconds=30)
TOO_LATE = NOW + timedelta(seconds=300)


def provisioning(*, pod=False):
    return apply(fresh(), PodNamed(1, POD)) if pod else fresh()


def releasing():
    return apply(fresh(), ReleaseBegun(1, POD, Evidence(), NOW))


def active():
    return apply(releasing(), WorkerStarted(NOW, NOW, NOW, NOW, {}))


def ended(phase):
    record = apply(releasing(), Ended(Phase.LOST if phase is Phase.REMOVED else phase, END, NOW))
    return apply(record, Removed(NOW)) if phase is Phase.REMOVED else record


def what(record, *, spec="spec", manifest="manifest", pod=None, now=EXPIRED):
    return recover(record, spec_hash=spec, manifest_digest=manifest, pod=pod, now=now)


@pytest.mark.parametrize("now", [NOW, EXPIRED, TOO_LATE])
@pytest.mark.parametrize("record", [provisioning(), releasing(), active(), ended(Phase.FAILED), ended(Phase.REMOVED)])
def test_another_spec_conflicts_in_every_phase(record, now):
    assert what(record, spec="other", now=now) == SpecConflict()


@pytest.mark.parametrize("now", [NOW, EXPIRED, TOO_LATE])
@pytest.mark.parametrize("phase", [p for p in Phase if p.terminal])
def test_a_run_that_is_over_is_not_started_again(phase, now):
    assert isinstance(what(ended(phase), now=now), ReturnHandle)


def test_an_active_run_needs_no_launcher():
    assert isinstance(what(active(), manifest="other", now=TOO_LATE), ReturnHandle)


def test_a_run_stopped_before_its_launch_starts_nothing():
    assert isinstance(what(tombstone(token=TOKEN, now=NOW), spec="any"), ReturnHandle)


def test_a_launch_that_is_being_stopped_is_not_taken_over():
    assert isinstance(what(apply(fresh(), StopRequested(NOW))), ReturnHandle)


@pytest.mark.parametrize("record", [provisioning(), provisioning(pod=True), releasing()])
def test_a_live_lease_is_left_alone(record):
    assert isinstance(what(record, now=EXPIRED - timedelta(milliseconds=1)), ReturnHandle)


@pytest.mark.parametrize(
    ("record", "pod", "go_on"),
    [
        (provisioning(), None, "provision"),
        (provisioning(), PodFact("created-but-not-named"), "provision"),
        (provisioning(pod=True), PodFact("pod-1"), "provision"),
        (releasing(), PodFact("pod-1"), "release"),
    ],
)
def test_an_expired_lease_is_taken_over(record, pod, go_on):
    assert what(record, pod=pod) == TakeOver(go_on)


@pytest.mark.parametrize("record", [provisioning(pod=True), releasing()])
@pytest.mark.parametrize("pod", [None, PodFact("pod-2")])
def test_a_vanished_pod_is_never_made_again(record, pod):
    assert what(record, pod=pod) == Abandon("the pod has vanished")


@pytest.mark.parametrize("record", [provisioning(pod=True), releasing()])
def test_an_upgrade_in_between_abandons_the_launch(record):
    assert isinstance(what(record, manifest="other", pod=PodFact("pod-1")), Abandon)


@pytest.mark.parametrize("record", [provisioning(pod=True), releasing()])
def test_after_the_provision_bound_nobody_takes_over(record):
    assert what(record, pod=PodFact("pod-1"), now=TOO_LATE) == Abandon("the provision bound has passed")


@pytest.mark.parametrize("now", [EXPIRED, TOO_LATE])
def test_a_run_whose_gate_has_opened_needs_no_launcher(now):
    assert what(releasing(), pod=PodFact("pod-1", released=True), manifest="other", now=now) == ReturnHandle(
        "released already"
    )


def test_an_open_gate_in_another_pod_releases_nothing():
    assert isinstance(what(releasing(), pod=PodFact("pod-2", released=True)), Abandon)


@pytest.mark.parametrize(("seconds", "is_abandoned"), [(0, False), (30, False), (89, False), (90, True)])
@pytest.mark.parametrize("record", [provisioning(), releasing()])
def test_an_observer_gives_a_launch_up_sixty_seconds_after_its_lease(record, seconds, is_abandoned):
    now = NOW + timedelta(seconds=seconds)
    assert abandoned(record, now, after=timedelta(seconds=60)) is is_abandoned


@pytest.mark.parametrize("record", [active(), ended(Phase.LOST), ended(Phase.REMOVED)])
def test_only_a_launch_can_be_abandoned(record):
    assert not abandoned(record, NOW + timedelta(days=9), after=timedelta(seconds=60))


def test_an_abandoned_launch_is_podgates_own_failure():
    result = abandoned_result("the pod has vanished")
    assert (result.exit_code, result.reason, result.retriable) == (125, "launch_abandoned", True)
