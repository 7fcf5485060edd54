"""A witness or prover in trouble: no worker is started without a proof, and a running one is not ended for nothing."""

import json
from collections.abc import Iterator

import pytest
from bed import Bed
from podgate_cli import UNTIL_GO, Done, Place, Podgate, until

pytestmark = [pytest.mark.cluster, pytest.mark.policy]

WITNESS = "podgate-witness"


@pytest.fixture(autouse=True)
def mended(place: Place, podgate: Podgate) -> Iterator[None]:
    """The witness as it was installed, and a preflight that is valid from before."""
    before = {kind: json.loads(place.kubectl("get", kind, WITNESS, "-o", "json")) for kind in ("deployment", "service")}
    checked = podgate("preflight", "--json")
    if checked.code:
        checked = podgate("preflight", "--force", "--json")
    assert checked.code == 0, checked.out
    yield
    place.bed.command("policy", "enforce")
    place.kubectl("patch", "deployment", WITNESS, "--type=json", "-p", _replaced("/spec", before["deployment"]["spec"]))
    families = {key: before["service"]["spec"][key] for key in ("ipFamilyPolicy", "ipFamilies", "clusterIPs")}
    place.kubectl("patch", "service", WITNESS, "--type=merge", "-p", json.dumps({"spec": families}))
    rolled_out(place)


def _replaced(path: str, value: object) -> str:
    return json.dumps([{"op": "replace", "path": path, "value": value}])


def rolled_out(place: Place) -> None:
    place.kubectl("rollout", "status", f"deployment/{WITNESS}", "--timeout=90s")
    until("old witnesses are gone", lambda: len(witnesses(place)) == 2)


def witnesses(place: Place) -> list[str]:
    return place.kubectl("get", "pod", "-l", f"app.kubernetes.io/name={WITNESS}", "-o", "name").split()


def refused(podgate: Podgate, place: Place) -> Done:
    run_id = podgate.run_id()
    done = podgate("launch", "--json", *podgate.shell(run_id, "true"))
    assert done.code == 125, done.err
    assert not place.worker_was_begun(run_id)
    until("pod, policy and Secret are gone", lambda: not place.of_run(run_id))
    return done


@pytest.mark.parametrize("mode", ["enforce", "off"])
def test_witnesses_that_serve_no_deny_port_never_make_a_proof(
    podgate: Podgate, place: Place, bed: Bed, mode: str
) -> None:
    """With the policy off, silence of a dead listener would look like a drop: the false proof to be ruled out."""
    dead_deny_port(place)
    bed.command("policy", mode)

    done = refused(podgate, place)

    assert done.error["code"] == "witness_unserved"


def dead_deny_port(place: Place) -> None:
    """Move the deny listener elsewhere: the control port still speaks, and nobody serves the deny port."""
    container = json.loads(place.kubectl("get", "deployment", WITNESS, "-o", "json"))["spec"]["template"]["spec"][
        "containers"
    ][0]
    (config,) = container["args"]
    moved = json.dumps({**json.loads(config), "denyPort": 18788})
    place.kubectl(
        "patch",
        "deployment",
        WITNESS,
        "--type=json",
        "-p",
        _replaced("/spec/template/spec/containers/0/args", [moved]),
    )
    rolled_out(place)


def test_without_any_witness_there_is_no_proof(podgate: Podgate, place: Place) -> None:
    place.kubectl("scale", "deployment", WITNESS, "--replicas=0")
    until("no witness is left", lambda: not witnesses(place))

    assert refused(podgate, place).error["code"] == "witness_unavailable"


def test_a_service_without_ipv6_leaves_a_hole_and_is_refused(podgate: Podgate, place: Place) -> None:
    single = {"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"], "clusterIPs": None}}
    first = json.loads(place.kubectl("get", "service", WITNESS, "-o", "json"))["spec"]["clusterIPs"][0]
    single["spec"]["clusterIPs"] = [first]
    place.kubectl("patch", "service", WITNESS, "--type=merge", "-p", json.dumps(single))

    assert refused(podgate, place).error["code"] == "witness_family_missing"


def test_one_backend_killed_while_the_proof_comes_to_stand_costs_no_launch(podgate: Podgate, place: Place) -> None:
    run_id = podgate.run_id()
    launching = podgate.start("launch", "--json", *podgate.shell(run_id, "true"))
    until("the prover runs", lambda: "running" in place.container(run_id, "prover"))

    place.kubectl("delete", witnesses(place)[0], "--grace-period=0", "--force")

    assert podgate.end(launching).code == 0
    rolled_out(place)


def test_a_witness_that_is_rolled_out_in_mid_run_leaves_no_blindness(podgate: Podgate, place: Place) -> None:
    run_id = podgate.run_id()
    assert podgate("launch", *podgate.shell(run_id, UNTIL_GO)).code == 0

    place.kubectl("rollout", "restart", f"deployment/{WITNESS}")
    rolled_out(place)
    until("a round after it was proven", lambda: proven_after_rollout(place, run_id), seconds=60)
    place.let_go(run_id)

    until("it is over", lambda: podgate("status", "--json", "--run-id", run_id).json["state"] == "succeeded")
    said = podgate("evidence", "--json", "--run-id", run_id).json
    assert said["end"] == "standing"
    assert said["blindSince"] is None


def proven_after_rollout(place: Place, run_id: str) -> bool:
    """Whether the prover's newest round is proven by a backend that is there now."""
    pod = place.pod(run_id)
    assert pod is not None
    log = place.kubectl("logs", pod["metadata"]["name"], "-c", "prover", "--tail=4").splitlines()
    rounds = [json.loads(line) for line in log if '"round"' in line]
    there = place.kubectl(
        "get", "pod", "-l", f"app.kubernetes.io/name={WITNESS}", "-o", "jsonpath={.items[*].status.podIPs}"
    )
    return bool(rounds) and all(r["verdict"] == "proven" and f'"{r["backend"]}"' in there for r in rounds[-2:])


def test_a_prover_killed_before_the_marker_refuses_the_run(podgate: Podgate, place: Place) -> None:
    run_id = podgate.run_id()
    launching = podgate.start("launch", "--json", *podgate.shell(run_id, "true"))
    until("the prover runs", lambda: "running" in place.container(run_id, "prover"))

    place.inside(run_id, "prover", "sh", "-c", "kill -TERM 1")

    done = podgate.end(launching)
    assert done.code == 125
    assert done.error["code"] == "gate_restarted"
    assert not place.worker_was_begun(run_id)


def test_a_prover_killed_in_mid_run_comes_back_and_the_run_goes_on(podgate: Podgate, place: Place) -> None:
    run_id = podgate.run_id()
    assert podgate("launch", *podgate.shell(run_id, UNTIL_GO)).code == 0

    place.inside(run_id, "prover", "sh", "-c", "(sleep 0.3; kill -TERM 1) >/dev/null 2>&1 &")
    until("it is back", lambda: restarts(place, run_id) == 1 and "running" in place.container(run_id, "prover"))
    place.let_go(run_id)

    until("it is over", lambda: podgate("status", "--json", "--run-id", run_id).json["state"] == "succeeded")


def restarts(place: Place, run_id: str) -> int:
    statuses = (place.pod(run_id) or {}).get("status", {}).get("initContainerStatuses", [])
    return next((each["restartCount"] for each in statuses if each["name"] == "prover"), 0)
