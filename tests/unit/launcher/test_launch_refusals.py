"""Launches that are refused: each says so by its code, in the record before the pod is touched, and leaves nothing."""

import asyncio
from dataclasses import dataclass

import isolation_samples as samples
import pytest
from launch_world import NAME, NAMESPACE, execs, launching, refused, writes_phase
from preflight_world import witness

from isolation import names
from launcher.cluster.errors import NotFound, Refused
from launcher.cluster.port import Kind
from launcher.testing.fake_script import At, Fall, Script
from launcher.testing.interceptor import calls
from launcher.testing.virtual_time import VirtualLoop
from records.model import Phase

pytestmark = pytest.mark.anyio

POD = (Kind.POD, NAMESPACE, NAME)
POLICY = (Kind.NETWORK_POLICY, NAMESPACE, NAME)
WITH_SECRET = samples.spec(command=["true"], capability="model")


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


async def failed(it, launch, code):
    """Await a launch that must fail, and hold what is true of every refused launch; returns its error."""
    error = await refused(launch)
    record = await it.record()
    assert (error.code, record.phase, record.result.reason) == (code, Phase.FAILED, code)
    assert (record.result.exit_code, record.result.artifacts) == (125, "absent")
    assert it.recorded_at("failed") < it.deleted_at()
    assert not it.started("worker")
    await it.drained()
    return error


def slow_seed(replica, seconds=10.0):
    """Hold the seed up, so that something can happen while it is under way."""

    async def hold():
        await asyncio.sleep(seconds)

    replica.port.before(execs("receive"), hold)


def while_seeding(replica, act):
    """Let ``act`` happen between proof and second attestation."""

    async def hold():
        await asyncio.sleep(10)
        act()

    replica.port.before(execs("receive"), hold)


# --- the proof ---


async def test_a_policy_that_never_comes_into_force_is_refused_at_the_bound():
    async with launching(Script(enforced=False)) as it:
        error = await failed(it, it.replica().launch(WITH_SECRET), "policy_not_enforced")
        life = it.node.life_of(NAME)
        took = (await it.record()).ended_at.timestamp() - it.cluster.clock._epoch.timestamp() - life.times["start"]
    assert error.stage == "proof"
    assert took == pytest.approx(it.settings.bounds.first_proof, abs=2)
    assert not it.marked()


async def test_a_policy_that_comes_late_is_waited_for():
    async with launching(Script(enforced_after=50)) as it:
        await it.replica().launch(it.spec)
        evidence = (await it.record()).evidence
    assert evidence.policy_latency_seconds == pytest.approx(50, abs=1)


ROUNDS = {
    "open": "policy_not_enforced",
    "intercepted": "policy_intercepted",
    "leak": "policy_leak",
    "unserved": "witness_unserved",
    "unavailable": "witness_unavailable",
    "unusable": "probe_unusable",
}


@pytest.mark.parametrize(("verdict", "code"), ROUNDS.items())
async def test_the_last_rounds_verdict_names_the_refusal(verdict, code):
    async with launching(Script(enforced=False, unproven=verdict), bounds={"first_proof": 8}) as it:
        await failed(it, it.replica().launch(it.spec), code)


@pytest.mark.parametrize(("verdict", "code"), ROUNDS.items())
async def test_a_proof_that_falls_while_the_seed_is_sent_is_refused_with_its_own_code(verdict, code):
    async with launching(Script(fall=Fall(At("standing", 2), verdict))) as it:
        one = it.replica()
        slow_seed(one)
        await failed(it, one.launch(WITH_SECRET), f"{code}_before_release")
    assert not it.marked()


async def test_a_proof_that_falls_and_stands_up_again_is_another_proof():
    async with launching(Script(fall=Fall(At("standing", 2), "open", seconds=1))) as it:
        one = it.replica()
        slow_seed(one)
        await failed(it, one.launch(it.spec), "policy_not_enforced_before_release")


async def test_a_proof_that_falls_while_the_release_is_recorded_opens_no_gate():
    async with launching(Script(fall=Fall(At("standing", 1)))) as it:
        one = it.replica()

        async def hold():
            await asyncio.sleep(5)

        one.port.before(writes_phase("releasing"), hold)
        await failed(it, one.launch(it.spec), "policy_not_enforced_before_release")


@pytest.mark.parametrize("when", [At("start", 0.6), At("standing", 1)])
async def test_a_prover_that_restarts_before_the_release_fails_the_launch(when):
    async with launching(Script(prover_restarts=when)) as it:
        one = it.replica()
        slow_seed(one)
        await failed(it, one.launch(it.spec), "gate_restarted")


async def test_a_reachable_node_is_refused_where_the_operator_wants_that():
    async with launching(Script(node_exposure=("10.231.0.2:10250",)), node_exposure="refuse") as it:
        error = await failed(it, it.replica().launch(it.spec), "node_reachable")
    assert "10.231.0.2:10250" in error.message


async def test_a_pod_with_a_family_that_the_witness_lacks_is_refused():
    async with launching(service=witness(clusterIP="10.96.0.9", clusterIPs=["10.96.0.9"])) as it:
        error = await failed(it, it.replica().launch(it.spec), "witness_family_missing")
    assert "IPv6" in error.message


async def test_without_a_witness_nothing_is_created():
    async with launching() as it:
        await it.cluster.delete(Kind.SERVICE, NAMESPACE, it.settings.isolation.witness)
        error = await refused(it.replica().launch(it.spec))
        assert (error.code, await it.record(), it.left) == ("witness_unavailable", None, [])


# --- attestation ---


def _sidecar(pod):
    pod["spec"]["containers"].append({"name": "istio-proxy", "image": "mesh"})


def _label(pod):
    pod["metadata"]["labels"]["team"] = "x"


def _other_image(pod):
    pod["spec"]["containers"][1]["image"] = "mirror.example/other@sha256:" + "c" * 64


def _token(pod):
    pod["spec"]["automountServiceAccountToken"] = True


def _first_init(pod):
    pod["spec"]["initContainers"].insert(0, {"name": "setup", "image": "mesh"})


def _opened(policy):
    policy["spec"]["egress"].append({})


MUTATIONS = {
    "sidecar": (Kind.POD, _sidecar, "$.spec.containers"),
    "label": (Kind.POD, _label, "$.metadata.labels"),
    "image": (Kind.POD, _other_image, "$.spec.containers"),
    "token": (Kind.POD, _token, "$.spec.automountServiceAccountToken"),
    "init container": (Kind.POD, _first_init, "$.spec.initContainers"),
    "egress rule": (Kind.NETWORK_POLICY, _opened, "$.spec.egress"),
}


def admission(kind, change):
    """Let the cluster change the run's objects on their way in."""

    def admit(verb, of, body):
        if of is kind and body["metadata"]["name"] == NAME:
            change(body)
        return body

    return admit


@pytest.mark.parametrize(("kind", "change", "path"), MUTATIONS.values(), ids=MUTATIONS)
async def test_what_the_cluster_changed_on_its_way_in_is_found_by_its_path(kind, change, path):
    async with launching() as it:
        it.cluster.admission.append(admission(kind, change))
        error = await failed(it, it.replica().launch(WITH_SECRET), "attestation_failed")
        record = await it.record()
    assert error.violations[0]["path"].startswith(path)
    assert error.violations[0]["object"] == {Kind.POD: "pod", Kind.NETWORK_POLICY: "policy"}[kind]
    assert record.evidence.violations[0].startswith(path)


async def test_an_allowance_lets_exactly_that_difference_through():
    allowed = {"path": "$.metadata.labels.team", "value": "x", "reason": "set by our platform team"}
    async with launching(allowances=[allowed]) as it:
        it.cluster.admission.append(admission(Kind.POD, _label))
        await it.replica().launch(it.spec)
        assert it.started("worker")


@pytest.mark.parametrize(("kind", "change", "path"), MUTATIONS.values(), ids=MUTATIONS)
async def test_what_is_changed_while_the_seed_is_sent_is_found_before_the_release(kind, change, path):
    async with launching() as it:
        one = it.replica()
        while_seeding(one, lambda: it.cluster.store.edit((kind, NAMESPACE, NAME), change))
        error = await failed(it, one.launch(it.spec), "attestation_failed")
    assert error.violations[0]["path"].startswith(path)
    assert not it.marked()


async def test_a_policy_that_is_gone_before_the_release_is_refused():
    async with launching(Script(enforced_after=0)) as it:
        one = it.replica()
        while_seeding(one, lambda: it.cluster.store.remove(POLICY))
        await failed(it, one.launch(it.spec), "attestation_failed")


# --- objects of others ---


@pytest.mark.parametrize("kind", [Kind.POD, Kind.NETWORK_POLICY])
async def test_an_object_of_somebody_else_is_refused_and_left_as_it_is(kind):
    async with launching() as it:
        body = {"metadata": {"name": NAME}, "spec": {"containers": []} if kind is Kind.POD else {"podSelector": {}}}
        theirs = await it.cluster.create(kind, NAMESPACE, body)
        error = await refused(it.replica().launch(it.spec))
        await asyncio.sleep(60)
        (still,) = it.items(kind)
    assert error.code == "foreign_object"
    assert (still["metadata"]["uid"], still["metadata"].get("deletionTimestamp")) == (theirs["metadata"]["uid"], None)


async def test_a_foreign_policy_leaves_no_pod_behind():
    async with launching() as it:
        await it.cluster.create(Kind.NETWORK_POLICY, NAMESPACE, {"metadata": {"name": NAME}, "spec": {}})
        await refused(it.replica().launch(it.spec))
        await it.until(lambda: it.pod is None, 60)
        assert ((await it.record()).result.reason, it.started("worker")) == ("foreign_object", False)


# --- the cluster's own no ---

QUOTA = Refused(f"create Pod {NAME}", status=403, reason="Forbidden", message="exceeded quota: pods", quota=True)


@pytest.mark.parametrize("kind", [Kind.POD, Kind.NETWORK_POLICY, Kind.SECRET])
async def test_an_exhausted_quota_is_waited_for(kind):
    async with launching() as it:
        one = it.replica()
        one.port.fail(calls("create", kind), QUOTA, times=4)
        await one.launch(WITH_SECRET)
        assert it.started("worker")
        assert it.cluster.clock.monotonic() > 2


async def test_a_quota_that_stays_exhausted_is_given_up_at_the_bound():
    async with launching() as it:
        one = it.replica()
        one.port.fail(calls("create", Kind.POD), QUOTA, times=10_000)
        error = await refused(one.launch(it.spec))
        record = await it.record()
    assert (error.code, record.result.reason) == ("quota_exhausted", "quota_exhausted")
    assert "exceeded quota: pods" in record.result.message
    assert 0 <= (record.ended_at - record.provision_by).total_seconds() < 1


REFUSALS = {
    "no right": (Refused("create Pod", status=403, reason="Forbidden", message="cannot create pods"), "access_denied"),
    "pod security": (
        Refused("create Pod", status=403, reason="Forbidden", message='violates PodSecurity "restricted"'),
        "manifest_refused",
    ),
    "invalid": (Refused("create Pod", status=422, reason="Invalid", message="spec.x: no"), "manifest_refused"),
}


@pytest.mark.parametrize(("error", "code"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refused_pod_is_told_with_the_servers_own_sentence(error, code):
    async with launching() as it:
        one = it.replica()
        one.port.fail(calls("create", Kind.POD), error)
        said = await refused(one.launch(it.spec))
        record = await it.record()
    assert (said.code, record.phase, record.result.reason) == (code, Phase.FAILED, code)
    assert error.message in record.result.message


# --- the node's own trouble ---


@dataclass(frozen=True)
class Trouble:
    """What the node does, the code it comes to, and a word of the sentence; after how many seconds at least."""

    script: Script
    code: str
    says: str
    after: float = 0.0


TROUBLES = {
    "trusted image": Trouble(Script(gate_image_error="no such host"), "pod_start_failed", "no such host", 299),
    "worker's image": Trouble(Script(worker_image_error="not found: job"), "pod_start_failed", "not found: job", 299),
    "unschedulable": Trouble(Script(unschedulable=True), "pod_start_timeout", "Insufficient cpu", 299),
    "gate hangs": Trouble(Script(gate_hangs=True), "pod_start_timeout", "bound", 299),
    "evicted while seeding": Trouble(Script(evicted=At("standing", 1)), "sandbox_lost", "ended by a signal"),
    "evicted while proving": Trouble(
        Script(evicted=At("start", 3), enforced=False), "sandbox_lost", "ended by a signal"
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
async def test_trouble_on_the_node_fails_the_launch_by_its_name(trouble):
    async with launching(trouble.script) as it:
        one = it.replica()
        slow_seed(one)
        begun = it.cluster.clock.monotonic()
        error = await failed(it, one.launch(it.spec), trouble.code)
        took = (await it.record()).ended_at.timestamp() - it.cluster.clock._epoch.timestamp() - begun
    assert trouble.says in error.message
    assert trouble.after <= took <= 301


@pytest.mark.parametrize("when", [At("start", 0.3), At("standing", 1)])
async def test_a_pod_that_vanishes_is_no_matter_of_rights_or_transfers(when):
    async with launching(Script(vanishes=when)) as it:
        one = it.replica()
        slow_seed(one)
        error = await refused(one.launch(it.spec))
        record = await it.record()
    assert (error.code, record.result.reason, record.result.artifacts) == ("sandbox_lost", "sandbox_lost", "absent")
    assert (len(it.pods_ever()), it.started("worker")) == (1, False)


async def test_an_exec_that_knows_before_the_watch_that_the_pod_is_gone_says_so():
    async with launching() as it:
        one = it.replica()
        one.port.fail(execs("receive"), NotFound(f"exec Pod {NAME}", status=404, reason="NotFound"))
        await failed(it, one.launch(it.spec), "sandbox_lost")


@pytest.mark.parametrize("container", [names.PROVER, names.GATE])
async def test_an_image_name_that_is_none_is_not_waited_for(container):
    async with launching(Script(starts_after=1000)) as it:
        task = asyncio.create_task(it.replica().launch(it.spec))
        await it.until(lambda: it.pod is not None and it.pod["spec"].get("nodeName"))
        it.life.status[container].wait("InvalidImageName", "couldn't parse image name")
        it.life.write()
        error = await failed(it, task, "pod_start_failed")
        assert it.cluster.clock.monotonic() < 60
    assert "couldn't parse image name" in error.message


# --- the seed ---


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a" * 100_000)
    return samples.spec(command=["true"], workspace=str(tmp_path)), tmp_path / "a.txt"


async def test_a_seed_that_is_cut_once_is_sent_again(workspace):
    async with launching(Script(seed_cut_after=4096)) as it:
        await it.replica().launch(workspace[0])
        assert (it.life.storage.cuts, it.started("worker")) == (1, True)


async def test_a_seed_that_never_arrives_whole_fails_the_launch(workspace):
    async with launching(Script(seed_cut_after=4096, seed_cuts=99)) as it:
        await failed(it, it.replica().launch(workspace[0]), "seed_failed")
        assert it.life.storage.seed is None


async def test_a_file_that_changes_meanwhile_fails_the_launch(workspace):
    async with launching() as it:
        one = it.replica()
        while_seeding(one, lambda: workspace[1].write_bytes(b"b"))
        await failed(it, one.launch(workspace[0]), "workspace_changed")
