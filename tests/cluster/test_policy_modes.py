"""Enforcement that works, fails or comes late, at a launch; each test has the test bed for itself."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bed import Bed
from podgate_cli import Place, Podgate, until
from worlds_policy import Mode, evidence, modes, nothing_began, own_image, refused, rounds, was_pulled

pytestmark = [pytest.mark.cluster, pytest.mark.policy]


@pytest.fixture
def mode(podgate: Podgate) -> Iterator[Mode]:
    """Sets how policies are enforced, after a preflight that is valid for the rest of the test."""
    with modes(podgate) as change:
        yield change


@pytest.fixture(scope="module")
def image(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A worker image that is not on the node until a worker of it starts."""
    return own_image(bed, tmp_path_factory.mktemp("image"))


# --- enforced: in whatever way ---


@pytest.mark.parametrize(
    ("name", "by", "node_is_open"),
    [
        ("enforce", "drop", True),
        # Slow only on a busy machine: the bed's engine refuses any second SYN then, the witness's control port's, too,
        # and a proof that stood falls. It is a refusal by the design, and no course for a gate to depend on.
        pytest.param("reject", "refusal", True, marks=pytest.mark.slow),
        pytest.param("strict", "drop", False, marks=pytest.mark.slow),
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
    assert (said["by"], said["end"]) == (by, "standing")
    assert bool(said["nodeExposure"]) is node_is_open


@pytest.mark.slow
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


# --- not enforced: refused before anything untrusted was so much as pulled ---


@pytest.mark.parametrize("name", ["off", "v4-only"])
def test_without_enforcement_the_proof_refuses_the_run(
    podgate: Podgate, place: Place, mode: Mode, image: str, name: str
) -> None:
    mode(name)

    done = refused(podgate, image=image)

    assert (done.error["code"], done.error["stage"]) == ("policy_not_enforced", "proof")
    assert not was_pulled(place, image)


@pytest.mark.parametrize("name", ["off", pytest.param("v4-only", marks=pytest.mark.slow)])
def test_without_enforcement_the_preflight_refuses_the_run(
    podgate: Podgate, place: Place, mode: Mode, name: str
) -> None:
    mode(name)
    assert podgate("preflight", "--force", "--json").code == 1
    run_id = podgate.run_id()

    done = podgate("launch", "--json", *podgate.shell(run_id, "true"))

    assert (done.code, done.error["code"], done.error["stage"]) == (125, "policy_not_enforced", "preflight")
    assert place.record(run_id) is None
    assert not place.of_run(run_id)


def test_an_additive_policy_that_opens_the_deny_port_refuses_the_run(
    podgate: Podgate, place: Place, mode: Mode, image: str
) -> None:
    opening = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "opens-egress", "namespace": place.namespace},
        "spec": {
            "podSelector": {"matchLabels": {"podgate.dev/component": "run"}},
            "policyTypes": ["Egress"],
            "egress": [{"ports": [{"port": 8788, "protocol": "TCP"}]}],
        },
    }
    place.bed.apply(opening)
    try:
        done = refused(podgate, image=image)
    finally:
        place.kubectl("delete", "networkpolicy", "opens-egress")

    assert done.error["code"] == "policy_not_enforced"
    assert not was_pulled(place, image)


def test_a_worker_image_of_our_own_is_pulled_once_the_run_is_released(
    podgate: Podgate, place: Place, mode: Mode, image: str
) -> None:
    """What the tests above see nothing of does show itself."""
    run_id = podgate.run_id()
    arguments = ["--image", image, *podgate.shell(run_id, "true")[2:]]

    done = podgate("run", "--json", *arguments[:-3], "/sh", "-c", ":")

    assert done.code == 0, done.err
    assert was_pulled(place, image)
    assert place.worker_was_begun(run_id)


# --- enforced no more, while the seed still streams ---


def test_a_policy_that_goes_during_the_seed_refuses_the_run(
    podgate: Podgate, place: Place, mode: Mode, root: Path
) -> None:
    workspace = root / "large"
    workspace.mkdir()
    with (workspace / "zeros").open("wb") as file:
        file.truncate(2 << 30)  # far more than is sent before the refusal
    run_id = podgate.run_id()
    launching = podgate.start(
        "launch", "--json", *podgate.shell(run_id, "true", "--workspace", str(workspace), "--disk-mb", "2560")
    )
    until("the proof stands", lambda: any(seen["standing"] for seen in rounds(place, run_id)), every=0.1)

    mode("off")

    done = podgate.end(launching)
    assert (done.code, done.error["code"]) == (125, "policy_not_enforced_before_release")
    nothing_began(place, run_id)
