"""A witness or prover in trouble: no worker is started without a proof, and a running one is not ended for nothing."""

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import IO

import pytest
from podgate_cli import UNTIL_GO, Place, Podgate, until
from worlds_policy import Mode, Witness, evidence, modes, nothing_began, prover_log, refused, rounds

from isolation import names

pytestmark = [pytest.mark.cluster, pytest.mark.policy]

ROUNDS_ENOUGH = 24
"""Twelve a family: the prover makes four a second in each until five seconds after the release."""

HOLD_UP = """
import fcntl, os, socket, time

def wait(path):
    while not os.path.exists(path):
        time.sleep(0.02)

wait("/run/podgate/current/seed.json")
lock = os.open("/run/podgate/.lock", os.O_RDWR | os.O_CREAT, 0o660)
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
wait("/run/podgate/.marker")
print("marker", flush=True)
while not socket.socket().connect_ex(("127.0.0.1", 8799)):
    time.sleep(0.02)
print("prover away", flush=True)
"""

FLOOD = """
import itertools, socket, sys

held = []
for ip in itertools.cycle(sys.argv[1:]):
    link = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
    link.setblocking(False)
    link.connect_ex((ip, 8787))
    held.append(link)
    if len(held) > 200:
        held.pop(0).close()
"""


@pytest.fixture
def witness(place: Place) -> Iterator[Witness]:
    """The witness, as it was installed; so it is again afterwards."""
    with Witness(place).mended_afterwards() as whole:
        yield whole


@pytest.fixture(autouse=True)
def mode(podgate: Podgate, witness: Witness) -> Iterator[Mode]:
    """Sets how policies are enforced; the preflight is valid from before."""
    with modes(podgate) as change:
        yield change


# --- deny listeners in trouble: with policies off, their silence would look like a drop ---


@pytest.mark.parametrize(
    ("fault", "without_policies"),
    [
        ("dead", "witness_unserved"),
        pytest.param("TCP dead", "policy_not_enforced", marks=pytest.mark.slow, id="TCP dead, UDP answers"),
        pytest.param("TCP mute", "policy_not_enforced", marks=pytest.mark.slow, id="TCP mute, UDP answers"),
        pytest.param("UDP dead", "policy_not_enforced", marks=pytest.mark.slow, id="UDP dead, TCP answers"),
        pytest.param("UDP mute", "policy_not_enforced", marks=pytest.mark.slow, id="UDP mute, TCP answers"),
        pytest.param("mute", "policy_intercepted", marks=pytest.mark.slow),
    ],
)
def test_silence_of_a_broken_deny_port_is_no_proof(
    podgate: Podgate, witness: Witness, mode: Mode, fault: str, without_policies: str
) -> None:
    witness.break_with(fault)

    with_policies = refused(podgate)
    mode("off")
    without = refused(podgate)

    assert (with_policies.error["code"], with_policies.error["stage"]) == ("witness_unserved", "proof")
    assert (without.error["code"], without.error["stage"]) == (without_policies, "proof")


@pytest.mark.slow
def test_a_witness_that_vouches_for_another_port_is_no_proof(podgate: Podgate, witness: Witness, mode: Mode) -> None:
    witness.serve_deny_elsewhere()
    mode("off")

    assert refused(podgate).error["code"] == "witness_unserved"


# --- backends that go ---


def test_without_any_witness_there_is_no_proof(podgate: Podgate, witness: Witness) -> None:
    witness.scale(0)

    assert refused(podgate).error["code"] == "witness_unavailable"


def test_a_service_without_ipv6_leaves_a_hole_and_is_refused(podgate: Podgate, witness: Witness) -> None:
    witness.only_ipv4()

    assert refused(podgate).error["code"] == "witness_family_missing"


def test_one_backend_killed_while_the_proof_comes_to_stand_costs_no_launch(
    podgate: Podgate, place: Place, witness: Witness
) -> None:
    run_id = podgate.run_id()
    launching = podgate.start("launch", "--json", *podgate.shell(run_id, "true"))
    until("the prover runs", lambda: "running" in place.container(run_id, names.PROVER), every=0.1)

    place.kubectl("delete", witness.pods()[0], "--grace-period=0", "--force")

    done = podgate.end(launching)
    assert done.code == 0, done.err


@pytest.mark.slow
def test_both_backends_gone_while_the_proof_comes_to_stand_refuse_the_run(
    podgate: Podgate, place: Place, witness: Witness
) -> None:
    run_id = podgate.run_id()
    launching = podgate.start("launch", "--json", *podgate.shell(run_id, "true"))
    until("the pod is there", lambda: place.pod(run_id), every=0.1)

    place.kubectl("scale", "deployment", "podgate-witness", "--replicas=0")

    done = podgate.end(launching)
    assert (done.code, done.error["code"].removesuffix("_before_release")) == (125, "witness_unavailable")
    nothing_began(place, run_id)


@pytest.mark.slow
def test_a_witness_that_is_rolled_out_in_mid_run_leaves_no_blindness(
    podgate: Podgate, place: Place, witness: Witness
) -> None:
    run_id = podgate.run_id()
    assert podgate("launch", *podgate.shell(run_id, UNTIL_GO)).code == 0

    place.kubectl("rollout", "restart", "deployment/podgate-witness")
    witness.settled()
    until("a round after it was proven", lambda: proven_by_the_new(place, witness, run_id), seconds=60)
    blind = longest_blindness(place, run_id)
    place.let_go(run_id)

    until("it is over", lambda: state(podgate, run_id) == "succeeded")
    said = evidence(podgate, run_id)
    assert (said["end"], said["blindSince"]) == ("standing", None)
    assert blind < 60


def proven_by_the_new(place: Place, witness: Witness, run_id: str) -> bool:
    """Whether the newest round of each family was proven by a backend that is there now."""
    newest = {seen["family"]: seen for seen in rounds(place, run_id)}
    there = witness.addresses()
    return all(seen["verdict"] == "proven" and seen["backend"] in there for seen in newest.values())


def longest_blindness(place: Place, run_id: str) -> float:
    """The longest time, in seconds, in which no round of one family was proven, from the first one that was."""
    gaps = [0.0]
    for family in ("4", "6"):
        proven = [
            seen["at"] for seen in rounds(place, run_id) if (seen["family"], seen["verdict"]) == (family, "proven")
        ]
        gaps.extend(later - earlier for earlier, later in pairwise(proven))
    return max(gaps)


def state(podgate: Podgate, run_id: str) -> str:
    return podgate("status", "--json", "--run-id", run_id).json["state"]


# --- a prover that is killed ---


def test_a_prover_killed_before_the_marker_refuses_the_run(podgate: Podgate, place: Place) -> None:
    run_id = podgate.run_id()
    launching = podgate.start("launch", "--json", *podgate.shell(run_id, "true"))
    until("the prover runs", lambda: "running" in place.container(run_id, names.PROVER), every=0.1)

    kill_prover(place, run_id)

    done = podgate.end(launching)
    assert (done.code, done.error["code"]) == (125, "gate_restarted")
    nothing_began(place, run_id)


def test_a_prover_killed_between_the_marker_and_the_gates_exit_refuses_the_run(
    podgate: Podgate, place: Place, mode: Mode
) -> None:
    mode("off")  # until the gate can be held up, lest the marker come before
    run_id = podgate.run_id()
    launching = podgate.start("launch", "--json", *podgate.shell(run_id, "true"))
    until("the gate runs", lambda: "running" in place.container(run_id, names.GATE), every=0.1)

    with gate_held_up(place, run_id) as said:
        assert said.readline() == "held\n"
        mode("enforce")
        assert said.readline() == "marker\n"
        assert place.phase(run_id) == "releasing"
        kill_prover(place, run_id)
        assert said.readline() == "prover away\n"

    done = podgate.end(launching)
    assert (done.code, done.error["code"]) == (125, "gate_restarted")
    assert "when the marker came" in done.error["message"], "it was the gate that refused"
    nothing_began(place, run_id)


def test_a_prover_killed_in_mid_run_comes_back_and_the_run_goes_on(podgate: Podgate, place: Place) -> None:
    run_id = podgate.run_id()
    assert podgate("launch", *podgate.shell(run_id, UNTIL_GO)).code == 0

    kill_prover(place, run_id)
    until("it is back", lambda: restarts(place, run_id) == 1 and "running" in place.container(run_id, names.PROVER))
    until("it has proven again", lambda: any(seen["standing"] for seen in rounds(place, run_id)))
    place.let_go(run_id)

    until("it is over", lambda: state(podgate, run_id) == "succeeded")
    assert evidence(podgate, run_id)["end"] == "standing"


@contextmanager
def gate_held_up(place: Place, run_id: str) -> Iterator[IO[str]]:
    """Hold the gate between the marker and its last questions, until the prover is away; yield what is seen meanwhile.

    As a receiver does that is still putting a seed in place: the gate waits for it for some seconds.
    """
    script, kubeconfig = str(place.bed.script), {"KUBECONFIG": str(place.bed.kubeconfig)}
    inside = ("exec", names.run_name(names.token(run_id)), "-c", names.GATE, "--", "python3", "-I", "-S", "-c", HOLD_UP)
    with subprocess.Popen(
        [script, "kubectl", "-n", place.namespace, *inside],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | kubeconfig,
    ) as process:
        assert process.stdout
        yield process.stdout
        process.terminate()


def kill_prover(place: Place, run_id: str) -> None:
    """End the prover's container; the exec itself ends before."""
    place.inside(run_id, names.PROVER, "sh", "-c", "(sleep 0.1; kill -TERM 1) >/dev/null 2>&1 &")


def restarts(place: Place, run_id: str) -> int:
    statuses = (place.pod(run_id) or {}).get("status", {}).get("initContainerStatuses", [])
    return next((each["restartCount"] for each in statuses if each["name"] == names.PROVER), 0)


# --- one run's worker against the others' proofs ---


@pytest.mark.slow
def test_a_flood_of_the_control_port_by_one_worker_blinds_no_other_run(
    podgate: Podgate, place: Place, witness: Witness
) -> None:
    flood = shlex.join(["python3", "-c", FLOOD, *witness.service_addresses()])
    flooding, other = podgate.run_id(), podgate.run_id()
    assert podgate("launch", *podgate.shell(flooding, f"exec {flood}", "--cpus", "0.4")).code == 0
    until("its own prover is blind", lambda: {"unavailable"} & verdicts(since_release(place, flooding)))

    done = podgate("launch", "--json", *podgate.shell(other, UNTIL_GO))
    assert done.code == 0, done.err
    until("rounds enough", lambda: len(since_release(place, other)) >= ROUNDS_ENOUGH)
    assert place.phase(flooding) == "active", "the flood went on all the time"
    place.let_go(other)

    assert verdicts(since_release(place, other)) == {"proven"}
    until("it is over", lambda: state(podgate, other) == "succeeded")
    said = evidence(podgate, other)
    assert (said["end"], said["blindSince"]) == ("standing", None)


def since_release(place: Place, run_id: str) -> list[dict]:
    """The prover's rounds that ended after the release."""
    log = prover_log(place, run_id)
    released = next((at for at, line in enumerate(log) if line.get("released")), len(log))
    return [line for line in log[released:] if "round" in line]


def verdicts(seen: list[dict]) -> set[str]:
    return {each["verdict"] for each in seen}
