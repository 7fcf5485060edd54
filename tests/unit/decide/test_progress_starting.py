"""A run whose worker has not been seen started, and one whose pod is gone: the truth tables."""

import json
from dataclasses import replace

import pytest
from looks import (
    PINNED,
    active,
    at,
    deleted,
    ended,
    evicting,
    finish,
    gated,
    outcome,
    pod,
    probe_killed,
    provisioning,
    releasing,
    starting,
    stopping,
)
from looks import decided as decide

from launcher.cluster.views import Condition, EventView, Running, Terminated, Waiting
from launcher.decide.progress import NeedsEvents, Started, Unchanged, progress
from records.birth import tombstone
from records.model import Evidence, Phase, Record, Result
from records.transitions import Ended, EvidenceNoted, Removed, apply

# --- terminal ---


def over() -> list[Record]:
    finished = apply(active(), Ended(Phase.FAILED, Result(exit_code=1, reason="worker_failed"), at(20)))
    return [finished, apply(finished, Removed(at(30))), tombstone(token="0" * 20, now=at(0), reason=None)]


@pytest.mark.parametrize("record", over())
@pytest.mark.parametrize("seen", [None, pod(), pod(ended(0))])
def test_terminal_is_terminal(record: Record, seen) -> None:
    assert progress(record, seen, at(10_000)) == Unchanged()


# --- provisioning ---


@pytest.mark.parametrize("seen", [None, gated(), starting(Waiting("InvalidImageName", "bad"))])
@pytest.mark.parametrize("named", [True, False])
def test_a_launch_under_way_is_left_to_whoever_holds_its_lease(seen, named) -> None:
    assert isinstance(decide(provisioning(named=named), seen, -1), Unchanged)


@pytest.mark.parametrize("seen", [None, gated()])
@pytest.mark.parametrize(("seconds", "abandoned"), [(0, False), (59, False), (60, True), (6000, True)])
def test_a_launch_is_abandoned_a_minute_after_its_lease(seen, seconds: float, abandoned) -> None:
    step = decide(provisioning(), seen, seconds)
    assert isinstance(step, Unchanged) is not abandoned
    if abandoned:
        assert outcome(provisioning(), seen, seconds) == ("failed", "launch_abandoned", 125)


def test_a_pod_of_another_run_is_not_looked_at() -> None:
    step = decide(provisioning(), replace(gated(), uid="another"), -1)
    assert step == Unchanged("the pod is not made yet")


@pytest.mark.parametrize("seen", [None, gated()])
def test_a_stop_ends_a_launch_at_once(seen) -> None:
    assert outcome(stopping(provisioning(), -5), seen, -4) == ("stopped", "stopped", 143)


@pytest.mark.parametrize("worker", [Running(at(-5)), ended(0)])
def test_a_worker_that_started_without_a_release_is_a_failed_attestation(worker) -> None:
    step = finish(provisioning(), pod(worker), -1)
    assert (step.phase, step.result.reason, step.delete_pod) == ("failed", "attestation_failed", True)


def test_a_gate_that_gave_up_after_its_launcher_says_abandoned() -> None:
    closed = gated_out(44, "pod_start_timeout")
    assert isinstance(decide(provisioning(), closed, -1), Unchanged)
    assert outcome(provisioning(), closed, 5)[1] == "launch_abandoned"


# --- the gate ---


def gated_out(code: int, said: str, **fields):
    message = json.dumps({"code": said, "message": "why", "state": None})
    gate = Terminated(code, "Error", message, at(-20), at(1))
    return starting(gate=gate, phase="Failed", **fields)


@pytest.mark.parametrize(
    ("code", "said", "phase", "reason"),
    [
        (40, "policy_not_enforced_before_release", "failed", "policy_not_enforced_before_release"),
        (40, "no_such_code", "failed", "probe_unusable"),
        (41, "gate_restarted", "failed", "gate_restarted"),
        (42, "marker_refused", "failed", "launch_superseded"),
        (43, "stopped", "lost", "sandbox_lost"),
        (45, "seed_failed", "failed", "seed_failed"),
        (1, "", "failed", "pod_start_failed"),
    ],
)
def test_a_gate_that_stayed_closed_ends_the_run_by_its_exit_code(code: int, said: str, phase: str, reason: str) -> None:
    step = finish(releasing(), gated_out(code, said), 5)
    assert (str(step.phase), step.result.reason, step.delete_pod) == (phase, reason, True)
    assert step.evidence is not None
    assert step.evidence.gate_exit == code


@pytest.mark.parametrize(("seconds", "reason"), [(-1, "pod_start_timeout"), (1, "launch_abandoned")])
def test_a_gate_without_a_marker_tells_a_slow_launch_from_an_abandoned_one(seconds: float, reason: str) -> None:
    assert outcome(releasing(), gated_out(44, "pod_start_timeout"), seconds)[1] == reason


@pytest.mark.parametrize("message", [None, "", "{", '"text"', '{"code": 7}', "[" * 100_000])
def test_a_damaged_message_leaves_the_exit_code_in_charge(message: str | None) -> None:
    gate = Terminated(40, "Error", message, at(-20), at(1))
    assert outcome(releasing(), starting(gate=gate, phase="Failed"), 5)[1] == "probe_unusable"


# --- released, and not started ---


@pytest.mark.parametrize("worker", [Running(at(1)), ended(0), ended(3)])
def test_the_first_to_see_the_worker_started_fixes_the_times(worker) -> None:
    step = decide(releasing(), pod(worker), 12)
    assert step == Started(at(1), at(61), at(61 + 3600), (("worker", PINNED),))


@pytest.mark.parametrize(
    ("skew", "seen_at", "begun"),
    [
        (0, 5, 10),
        (-3600, 12, 10),
        (-3600, 300, 10),
        (3600, 12, 12),
    ],
)
def test_a_nodes_wrong_clock_neither_cuts_a_run_short_nor_lets_it_run_on(
    skew: float, seen_at: float, begun: float
) -> None:
    gate = Terminated(0, "Completed", None, at(skew - 20), at(skew))
    seen = pod(Running(at(skew + 10)), gate=gate)
    step = decide(releasing(), seen, seen_at)
    assert isinstance(step, Started)
    assert step.started_at == at(skew + 10)
    assert step.deadline_at == at(min(begun, seen_at) + 60)


def test_a_worker_that_could_not_be_started_ends_the_run_without_having_run() -> None:
    end = Terminated(128, "StartError", "no such file", None, at(1))
    step = finish(releasing(), pod(end), 5)
    assert (step.result.reason, step.result.message) == ("worker_start_failed", "no such file")
    assert step.result.artifacts == "absent"


@pytest.mark.parametrize("reason", ["InvalidImageName", "ErrImageNeverPull"])
def test_what_no_time_heals_fails_at_once(reason: str) -> None:
    step = finish(releasing(), starting(Waiting(reason, "no image")), 5)
    assert (step.result.reason, step.delete_pod) == ("pod_start_failed", True)
    assert "no image" in (step.result.message or "")


@pytest.mark.parametrize(
    "reason", ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError", "RunContainerError"]
)
@pytest.mark.parametrize(("seconds", "ends"), [(269, False), (270, True)])
def test_what_may_heal_fails_only_at_the_provision_bound(reason: str, seconds: float, ends) -> None:
    step = decide(releasing(), starting(Waiting(reason, "cause")), seconds)
    assert isinstance(step, Unchanged) is not ends


def test_back_off_without_a_cause_takes_it_from_events() -> None:
    pulled = EventView(
        "Failed", "Failed to pull image: gone", warning=True, container="worker", first_at=at(1), last_at=at(1)
    )
    seen = starting(Waiting("ImagePullBackOff", ""))
    step = progress(releasing(), seen, at(20), events=(pulled,))
    assert isinstance(step, Unchanged)
    assert "Failed to pull image: gone" in (step.message or "")


def test_a_released_worker_that_waits_for_its_image_needs_no_launcher() -> None:
    step = decide(releasing(), starting(Waiting("ErrImagePull", "slow")), 200)
    assert isinstance(step, Unchanged)


@pytest.mark.parametrize(("seconds", "abandoned"), [(59, False), (60, True)])
def test_a_release_whose_marker_never_came_is_abandoned(seconds: float, abandoned) -> None:
    step = decide(releasing(), gated(), seconds)
    assert isinstance(step, Unchanged) is not abandoned
    if abandoned:
        assert outcome(releasing(), gated(), seconds)[1] == "launch_abandoned"


def test_a_stop_comes_before_a_worker_that_has_not_started() -> None:
    assert outcome(stopping(releasing(), 1), starting(), 2) == ("stopped", "stopped", 143)


def test_a_stop_after_the_start_was_seen_first_is_told_by_the_next_look() -> None:
    assert isinstance(decide(stopping(releasing(), 1), pod(), 2), Started)


@pytest.mark.parametrize(
    "seen",
    [
        deleted(starting(), 1),
        starting(conditions=evicting(1)),
        replace(starting(phase="Failed", reason="OutOfcpu"), containers=None, init=None),
    ],
)
def test_a_pod_taken_away_before_the_start_is_lost(seen) -> None:
    step = finish(releasing(), seen, 5)
    assert (step.phase, step.result.retriable, step.result.artifacts) == (Phase.LOST, True, "absent")


# --- the sandbox ---


@pytest.mark.parametrize(
    ("sandbox", "seconds", "gone"), [("False", 6, True), ("True", 6, False), (None, 6, False), (None, 40, True)]
)
def test_a_sandbox_that_died_after_the_release_is_told_from_a_prover_that_restarts(
    sandbox: str | None, seconds: float, gone
) -> None:
    conditions = (Condition("PodReadyToStartContainers", sandbox),) if sandbox else ()
    seen = starting(prover=Terminated(137, "Error", None, at(-20), at(5)), conditions=conditions)
    step = decide(releasing(), seen, seconds)
    assert isinstance(step, Unchanged) is not gone
    if gone:
        assert outcome(releasing(), seen, seconds) == ("lost", "sandbox_lost", 1)


# --- silent kubelets ---


def test_events_are_asked_for_only_when_nothing_moves() -> None:
    silent = starting(gate=Waiting("PodInitializing"), prover=Waiting("PodInitializing"), keeper=Waiting())
    silent = replace(silent, containers=silent.containers[1:] if silent.containers else None)
    assert isinstance(progress(releasing(), silent, at(-20)), Unchanged)
    assert progress(releasing(), silent, at(0)) == NeedsEvents()


# --- the pod is gone ---


@pytest.mark.parametrize("record", [releasing(), active()])
@pytest.mark.parametrize("seen", [None, replace(pod(ended(0)), uid="another")])
def test_a_released_pod_that_is_gone_is_lost_and_its_end_unknown(record: Record, seen) -> None:
    assert progress(record, seen, at(10)) == NeedsEvents()
    step = finish(record, seen, 10)
    assert (step.phase, step.result.reason, step.result.artifacts) == (Phase.LOST, "pod_deleted", "expired")
    assert step.evidence is not None
    assert step.evidence.end == "unknown"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ("Evicted", "evicted"),
        ("Preempted", "preempted"),
        ("TaintManagerEviction", "node_lost"),
        ("Killing", "pod_deleted"),
    ],
)
def test_events_tell_why_a_pod_is_gone(event: str, reason: str) -> None:
    events = (EventView(event, "Marking for deletion", warning=True, container=None, first_at=at(9), last_at=at(9)),)
    assert outcome(active(), None, 10, events=events)[1] == reason


def test_a_taint_that_was_taken_back_took_nothing_away() -> None:
    events = (
        EventView(
            "TaintManagerEviction",
            "Cancelling deletion of Pod runs/x",
            warning=False,
            container=None,
            first_at=at(9),
            last_at=at(9),
        ),
    )
    assert outcome(active(), None, 10, events=events)[1] == "pod_deleted"


def test_what_was_seen_to_end_a_pod_is_why_it_is_gone() -> None:
    record = apply(active(), EvidenceNoted(Evidence(disruption="evicted")))
    assert outcome(record, None, 10) == ("lost", "evicted", 1)
    assert outcome(stopping(record), None, 20)[0] == "stopped"


def test_a_pod_that_is_gone_after_a_stop_was_stopped() -> None:
    assert outcome(stopping(active()), None, 20) == ("stopped", "stopped", 143)


def test_a_503_that_killed_the_worker_comes_before_a_stop_also_when_the_pod_is_gone() -> None:
    assert outcome(stopping(active()), None, 20, events=probe_killed(8))[1] == "isolation_lost"
