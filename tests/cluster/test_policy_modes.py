"""Policy enforcement that works, fails, comes late or goes away; each test has the test bed for itself."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bed import Bed
from podgate_cli import Done, Place, Podgate, until

pytestmark = [pytest.mark.cluster, pytest.mark.policy]

Mode = Callable[[str], None]

ENDS_WELL_ON_TERM = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


@pytest.fixture
def mode(bed: Bed, podgate: Podgate) -> Iterator[Mode]:
    """Sets how policies are enforced, after a preflight that is valid for the rest of the test."""
    checked = podgate("preflight", "--json")
    if checked.code:  # an earlier test left its failure
        checked = podgate("preflight", "--force", "--json")
    assert checked.code == 0, checked.out
    yield lambda name: (bed.command("policy", name), None)[1]
    bed.command("policy", "enforce")


def evidence(podgate: Podgate, run_id: str) -> dict:
    return podgate("evidence", "--json", "--run-id", run_id).json


def refused(podgate: Podgate, place: Place, *flags: str) -> tuple[str, Done]:
    """A launch that must be refused: nothing of the worker began, and nothing is left but the record."""
    run_id = podgate.run_id()
    done = podgate("launch", "--json", *podgate.shell(run_id, "true", *flags))
    assert done.code == 125
    assert place.phase(run_id) == "failed"
    assert not place.worker_was_begun(run_id)
    until("pod, policy and Secret are gone", lambda: not place.of_run(run_id))
    return run_id, done


@pytest.mark.parametrize(
    ("name", "by", "node_is_open"),
    [
        ("enforce", "drop", True),
        # Slow only on a busy machine: the bed's engine refuses any second SYN then, the witness's control port's, too,
        # and a proof that stood falls. It is a refusal by the design, and no course for a gate to depend on.
        pytest.param("reject", "refusal", True, marks=pytest.mark.slow),
        ("strict", "drop", False),
    ],
)
def test_a_policy_that_is_enforced_releases_the_run(
    podgate: Podgate, mode: Mode, name: str, by: str, *, node_is_open: bool
) -> None:
    mode(name)
    run_id = podgate.run_id()

    done = podgate("run", "--json", *podgate.shell(run_id, "true"))

    assert done.code == 0, done.err
    said = evidence(podgate, run_id)
    assert said["by"] == by
    assert bool(said["nodeExposure"]) is node_is_open
    assert said["end"] == "standing"


@pytest.mark.parametrize("name", ["off", "v4-only"])
def test_without_enforcement_the_proof_refuses_the_run(podgate: Podgate, place: Place, mode: Mode, name: str) -> None:
    mode(name)

    _, done = refused(podgate, place)

    assert (done.error["code"], done.error["stage"]) == ("policy_not_enforced", "proof")


@pytest.mark.parametrize("name", ["off", "v4-only"])
def test_without_enforcement_the_preflight_refuses_the_run(
    podgate: Podgate, place: Place, mode: Mode, name: str
) -> None:
    mode(name)
    assert podgate("preflight", "--force", "--json").code == 1
    run_id = podgate.run_id()

    done = podgate("launch", "--json", *podgate.shell(run_id, "true"))

    assert (done.code, done.error["code"], done.error["stage"]) == (125, "policy_not_enforced", "preflight")
    assert place.record(run_id) is None


def test_a_policy_that_comes_late_is_waited_for_and_its_latency_told(
    podgate: Podgate, place: Place, mode: Mode
) -> None:
    enforced: list[float] = []
    patient = podgate.set(first_proof_seconds=20)
    assert patient("preflight", "--json").code == 0
    mode("off")
    run_id = podgate.run_id()
    launching = patient.start("launch", "--json", *podgate.shell(run_id, "true"))
    until("the gate runs", lambda: "running" in place.container(run_id, "gate"))

    late = threading.Timer(5.0, lambda: enforced.append((mode("enforce"), time.time())[1]))
    late.start()

    assert podgate.end(launching).code == 0
    said = evidence(podgate, run_id)
    (at,) = enforced
    assert at - said["rounds"]["firstAt"] > 4, "the policy was late"
    assert said["policyLatencySeconds"] == pytest.approx(at - said["rounds"]["firstAt"], abs=1.5)


def test_a_policy_that_goes_during_the_seed_refuses_the_run(
    podgate: Podgate, place: Place, mode: Mode, root: Path
) -> None:
    workspace = root / "large"
    workspace.mkdir()
    with (workspace / "zeros").open("wb") as file:
        file.truncate(600 << 20)
    run_id = podgate.run_id()
    launching = podgate.start(
        "launch", "--json", *podgate.shell(run_id, "true", "--workspace", str(workspace), "--disk-mb", "1024")
    )
    until("the proof stands", lambda: '"standing":true' in prover_log(place, run_id))

    mode("off")

    done = podgate.end(launching)
    assert (done.code, done.error["code"]) == (125, "policy_not_enforced_before_release")
    assert not place.worker_was_begun(run_id)
    until("pod, policy and Secret are gone", lambda: not place.of_run(run_id))


def prover_log(place: Place, run_id: str) -> str:
    pod = place.pod(run_id)
    if pod is None or "running" not in place.container(run_id, "prover"):
        return ""
    return place.kubectl("logs", pod["metadata"]["name"], "-c", "prover").replace(" ", "")


def test_isolation_lost_in_mid_run_kills_the_worker_with_no_launcher_alive(
    podgate: Podgate, place: Place, mode: Mode
) -> None:
    run_id = podgate.run_id()
    assert podgate("launch", *podgate.shell(run_id, ENDS_WELL_ON_TERM)).code == 0

    mode("off")

    ended = until("the worker is dead", lambda: place.container(run_id, "worker").get("terminated"), seconds=45)
    status = podgate("status", "--json", "--run-id", run_id).json
    assert (status["state"], status["reason"]) == ("failed", "isolation_lost"), json.dumps(ended)
    assert evidence(podgate, run_id)["end"] == "open"


def test_an_additive_policy_that_opens_the_deny_port_refuses_the_run(
    podgate: Podgate, place: Place, mode: Mode
) -> None:
    mode("enforce")
    opening = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "opens-egress", "namespace": place.namespace},
        "spec": {
            "podSelector": {"matchLabels": {"podgate.dev/component": "run"}},
            "policyTypes": ["Egress"],
            "egress": [{}],
        },
    }
    place.bed.apply(opening)
    try:
        _, done = refused(podgate, place)
    finally:
        place.kubectl("delete", "networkpolicy", "opens-egress")

    assert done.error["code"] == "policy_not_enforced"
