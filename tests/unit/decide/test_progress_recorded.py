"""Pods as a real Kubernetes 1.34 served them end as they should."""

from datetime import timedelta

import pytest
from looks import STANDING, record_of, recorded, recorded_events

from launcher.decide.progress import Finish, NeedsEvents, NeedsProver, Progress, Started, Unchanged, progress
from records.model import Phase


def seen(name: str, phase: Phase, *, after: float = 30, events: str | None = None, timeout: int = 3600) -> Progress:
    view = recorded(name)
    record = record_of(view, phase, timeout=timeout)
    now = (record.entered(Phase.RELEASING) or record.created_at) + timedelta(seconds=after)
    known = recorded_events(events) if events else ()
    step = progress(record, view, now)
    if isinstance(step, NeedsProver):
        step = progress(record, view, now, prover=STANDING)
    if isinstance(step, NeedsEvents):
        step = progress(record, view, now, prover=STANDING, events=known)
    return step


@pytest.mark.parametrize(
    ("name", "phase", "reason", "code"),
    [
        ("worker-exit-0", "succeeded", "completed", 0),
        ("worker-exit-3", "failed", "worker_failed", 3),
        ("worker-oom", "failed", "oom_killed", 137),
        ("worker-oom-child", "failed", "oom_killed", 137),
        ("worker-start-error", "failed", "worker_start_failed", 128),
        ("deadline-after-worker", "succeeded", "completed", 0),
        ("deadline-during-worker", "failed", "timed_out", 124),
        ("deadline-worker-exits-0-on-term", "failed", "timed_out", 124),
        ("evicted-after-worker-succeeded-1", "succeeded", "completed", 0),
        ("evicted-by-api-worker-exits-0-on-term", "lost", "evicted", 1),
        ("evicted-container-logs", "lost", "evicted", 1),
        ("evicted-containers-lost", "lost", "evicted", 1),
        ("evicted-emptydir-size-limit", "lost", "evicted", 1),
        ("evicted-pod-ephemeral-storage", "lost", "evicted", 1),
        ("deleted-with-finalizer-held", "lost", "pod_deleted", 1),
    ],
)
def test_a_started_worker_ends_as(name: str, phase: str, reason: str, code: int) -> None:
    step = seen(name, Phase.ACTIVE, after=600)
    assert isinstance(step, Finish)
    assert (str(step.phase), step.result.reason, step.result.exit_code) == (phase, reason, code)


@pytest.mark.parametrize("name", ["evicted-emptydir-size-limit", "evicted-by-api-worker-exits-0-on-term"])
def test_a_lost_run_may_be_tried_again_and_says_why(name: str) -> None:
    step = seen(name, Phase.ACTIVE)
    assert isinstance(step, Finish)
    assert step.result.retriable
    assert step.result.message


def test_a_worker_killed_by_its_probe_while_the_proof_stood_was_starved() -> None:
    step = seen("worker-killed-by-liveness", Phase.ACTIVE, events="worker-killed-by-liveness")
    assert isinstance(step, Finish)
    assert (step.result.reason, step.result.exit_code) == ("probe_starved", 137)


def test_a_running_worker_is_left_alone_without_another_request() -> None:
    view = recorded("worker-running")
    record = record_of(view, Phase.ACTIVE)
    assert progress(record, view, record.timeline[-1].at + timedelta(seconds=5)) == Unchanged()


def test_a_keeper_that_crashed_ends_the_run_once_its_pod_is_not_being_ended() -> None:
    assert isinstance(seen("keeper-exit-43", Phase.ACTIVE, after=10), Unchanged)
    step = seen("keeper-exit-43", Phase.ACTIVE, after=60)
    assert isinstance(step, Finish)
    assert (step.result.reason, step.delete_pod) == ("keeper_lost", True)


@pytest.mark.parametrize("name", ["worker-running", "worker-exit-0", "worker-exit-3", "worker-oom"])
def test_a_worker_seen_for_the_first_time_has_started_whatever_it_does_now(name: str) -> None:
    step = seen(name, Phase.RELEASING)
    assert isinstance(step, Started)
    assert dict(step.image_ids)["worker"].count("@sha256:") == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("worker-start-error", "worker_start_failed"),
        ("worker-invalid-image-name", "pod_start_failed"),
        ("worker-image-never-pull", "pod_start_failed"),
        ("gate-exit-41", "gate_restarted"),
        ("deadline-during-gate", "pod_start_timeout"),
        ("deleted-with-finalizer-during-gate-held", "pod_deleted"),
    ],
)
def test_a_worker_that_never_started_ends_at_once_as(name: str, reason: str) -> None:
    step = seen(name, Phase.RELEASING)
    assert isinstance(step, Finish)
    assert (step.result.reason, step.result.artifacts, step.delete_pod) == (reason, "absent", True)


WAITING = [
    ("worker-err-image-pull", "pod_start_failed", "not found"),
    ("worker-image-pull-back-off", "pod_start_failed", "not found"),
    ("worker-image-registry-unreachable", "pod_start_failed", "connection refused"),
    ("worker-create-container-config-error", "pod_start_failed", "secret"),
    ("gate-exited-0", "pod_start_timeout", "the gate is open"),
]


@pytest.mark.parametrize(("name", "reason", "word"), WAITING)
def test_what_may_heal_is_waited_for_and_said(name: str, reason: str, word: str) -> None:
    step = seen(name, Phase.RELEASING)
    assert isinstance(step, Unchanged)
    assert word in (step.message or "")


@pytest.mark.parametrize(("name", "reason", "word"), WAITING)
def test_it_is_given_up_at_the_provision_bound(name: str, reason: str, word: str) -> None:
    step = seen(name, Phase.RELEASING, after=270)
    assert isinstance(step, Finish)
    assert step.result.reason == reason
    assert word in (step.result.message or "")


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("gate-err-image-pull", "not found"),
        ("gate-image-pull-back-off", "not found"),
        ("gate-create-container-config-error", "secret"),
        ("gate-running", "waits for proof and seed"),
        ("unschedulable", "Insufficient cpu"),
        ("scheduling-gated", "SchedulingGated"),
    ],
)
def test_a_pod_on_its_way_says_what_it_waits_for(name: str, word: str) -> None:
    step = seen(name, Phase.RELEASING)
    assert isinstance(step, Unchanged)
    assert word in (step.message or "")
    assert "Back-off" not in (step.message or "")


@pytest.mark.parametrize(
    ("name", "word"),
    [("sandbox-cannot-be-made", "FailedCreatePodSandBox"), ("gate-mounts-missing-secret", "FailedMount")],
)
def test_a_silent_kubelet_is_explained_by_events(name: str, word: str) -> None:
    step = seen(name, Phase.RELEASING, events=name)
    assert isinstance(step, Unchanged)
    assert word in (step.message or "")


def test_an_image_known_under_another_repository_is_the_pinned_one() -> None:
    view = recorded("image-known-under-two-names")
    record = record_of(view, Phase.ACTIVE)
    assert progress(record, view, record.timeline[-1].at) == Unchanged()
