"""Isolation that is lost in mid-run: the kubelet ends the worker, and whoever looks later is told so."""

import json
import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from podgate_cli import Place, Podgate, until
from worlds_policy import Mode, evidence, modes

from isolation import names

pytestmark = [pytest.mark.cluster, pytest.mark.policy]

DEAD_WITHIN_SECONDS = 45

HEEDS_NOTHING = "trap '' TERM; while :; do sleep 0.1; done"
ENDS_WELL_ON_TERM = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


@pytest.fixture
def mode(podgate: Podgate) -> Iterator[Mode]:
    """Sets how policies are enforced, after a preflight that is valid for the rest of the test."""
    with modes(podgate) as change:
        yield change


def running(podgate: Podgate, script: str) -> str:
    """Run a worker, and kill the process that launched and watches it; return the run id."""
    run_id = podgate.run_id()
    process = podgate.start("run", "--json", *podgate.shell(run_id, script))
    until("the run is active", lambda: podgate.place.phase(run_id) == "active" or process.poll() is not None)
    process.kill()
    assert process.wait() < 0, "the run had not ended by itself"
    return run_id


def ended(place: Place, run_id: str) -> dict:
    return until(
        "the worker is dead", lambda: place.container(run_id, names.WORKER).get("terminated"), seconds=60, every=0.5
    )


def since(at: float, end: dict) -> float:
    return datetime.fromisoformat(end["finishedAt"]).timestamp() - at


def test_workers_die_with_no_launcher_alive_however_they_take_it(podgate: Podgate, place: Place, mode: Mode) -> None:
    runs = [running(podgate, script) for script in (HEEDS_NOTHING, ENDS_WELL_ON_TERM)]

    mode("off")
    lost_at = time.time()

    ends = [ended(place, run_id) for run_id in runs]
    assert max(since(lost_at, end) for end in ends) < DEAD_WITHIN_SECONDS, json.dumps(ends)
    assert [end["exitCode"] for end in ends] == [137, 0], "the second one looks like a success"
    for run_id in runs:
        status = podgate("status", "--json", "--run-id", run_id).json
        assert (status["state"], status["reason"]) == ("failed", "isolation_lost")
        assert evidence(podgate, run_id)["end"] == "open"


@pytest.mark.slow
def test_one_family_that_opens_is_enough(podgate: Podgate, place: Place, mode: Mode) -> None:
    run_id = running(podgate, ENDS_WELL_ON_TERM)

    mode("v4-only")
    lost_at = time.time()

    assert since(lost_at, ended(place, run_id)) < DEAD_WITHIN_SECONDS
    status = podgate("status", "--json", "--run-id", run_id).json
    assert (status["state"], status["reason"]) == ("failed", "isolation_lost")


@pytest.mark.slow
def test_a_worker_that_ended_before_keeps_its_success(podgate: Podgate, place: Place, mode: Mode) -> None:
    """What the prover sees of a pod after its worker's end says nothing about the worker."""
    run_id = running(podgate, "sleep 4")
    ended(place, run_id)

    mode("off")
    until("the prover has seen it", lambda: opened(place, run_id), seconds=40)

    status = podgate("status", "--json", "--run-id", run_id).json
    assert (status["state"], status["reason"]) == ("succeeded", "completed")


def opened(place: Place, run_id: str) -> bool:
    log = place.kubectl("logs", names.run_name(names.token(run_id)), "-c", names.PROVER)
    return '"verdict":"open","at"' in log
