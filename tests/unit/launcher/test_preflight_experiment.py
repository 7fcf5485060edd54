"""The experiment itself: what it makes, what it concludes, and that it leaves nothing behind."""

import asyncio

import pytest
from preflight_world import NAMESPACE, says_nothing, without_enforcement, world

from isolation import names
from isolation.objects.canary import LISTEN_PORT
from launcher.cluster.errors import Refused, Unreachable
from launcher.cluster.port import Kind
from launcher.testing.fake_node import healthy_canary
from launcher.testing.interceptor import calls
from launcher.testing.virtual_time import VirtualLoop
from launcher.witness import read_witness

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


async def report_of(w, **changes):
    preflight, port = w.replica(**changes)
    return await preflight.run_report(force=False), port


async def test_a_healthy_cluster_passes_and_nothing_is_left():
    async with world() as w:
        report, _ = await report_of(w)
        await w.drained()

    assert report.ok
    assert len(report.findings) == 4
    assert report.policy_latency_seconds == 0.5


async def test_each_pod_comes_before_its_policy_which_it_owns():
    async with world() as w:
        _, port = await report_of(w)

    made = [call for call in port.made("create") if call.kind in (Kind.POD, Kind.NETWORK_POLICY)]
    assert [call.kind for call in made] == [Kind.POD, Kind.NETWORK_POLICY] * 2
    for pod, policy in zip(made[::2], made[1::2], strict=True):
        (owner,) = policy.body["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("Pod", pod.name)


async def test_the_policed_canary_measures_against_the_open_ones_addresses():
    seen = {}

    def answers(kind, config):
        seen[kind] = config
        return healthy_canary(kind, config)

    async with world() as w:
        w.answers = answers
        await report_of(w)

    targets = seen["policed"]["latencyTargets"]
    assert len(targets) == 2
    assert {target["port"] for target in targets} == {LISTEN_PORT}
    assert seen["open"]["latencyTargets"] == []


async def test_canaries_are_deleted_by_uid_and_given_a_second():
    async with world() as w:
        _, port = await report_of(w)

    deleted = port.made("delete", Kind.POD)
    assert len(deleted) == 2
    assert all(call.body["uid"] and call.body["graceSeconds"] == 1 for call in deleted)


async def test_without_enforcement_it_fails_and_nothing_is_left():
    async with world() as w:
        w.answers = without_enforcement
        report, _ = await report_of(w)
        await w.drained()

    assert (report.ok, report.code) == (False, "policy_not_enforced")


async def test_a_witness_that_does_not_serve_spares_the_second_canary():
    def answers(kind, config):
        answer = healthy_canary(kind, config)
        closed = {"allOpen": False, "verdict": "unserved", "control": "banner"}
        return answer | {"ok": False, "families": {f: seen | closed for f, seen in answer["families"].items()}}

    async with world() as w:
        w.answers = answers
        report, _ = await report_of(w)

        assert report.code == "witness_unserved"
        assert w.asked == ["open"]


async def test_an_old_cluster_is_refused_before_anything_is_made():
    async with world() as w:
        w.cluster.version = (1, 28)
        report, port = await report_of(w)

    assert report.code == "cluster_too_old"
    assert not port.made("create", Kind.POD)


@pytest.mark.parametrize("installed", [True, False], ids=["headless", "absent"])
async def test_without_a_usable_witness_nothing_is_made(installed):
    async with world(installed=False) as w:
        if installed:
            await w.install(clusterIP="None", clusterIPs=["None"])
        report, port = await report_of(w)

    assert report.code == "witness_unavailable"
    assert not port.made("create", Kind.POD)


async def test_the_witness_is_read_by_family():
    async with world() as w:
        found = await read_witness(w.cluster, NAMESPACE, w.settings.isolation)
    assert found == {"4": "10.96.0.9", "6": "fd00::9"}


@pytest.mark.parametrize("missing", range(3))
async def test_a_witness_service_without_one_of_its_ports_is_named_and_refused(missing):
    async with world(installed=False) as w:
        await w.install()
        service = (Kind.SERVICE, NAMESPACE, w.settings.isolation.witness)
        gone = w.cluster.store.get(service)["spec"]["ports"][missing]
        w.cluster.store.edit(service, lambda body: body["spec"]["ports"].pop(missing))
        report, _ = await report_of(w)

    assert report.code == "witness_unavailable"
    assert f"{gone['port']}/{gone['protocol']}" in report.message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused("create Pod", status=403, message="exceeded quota: small", quota=True), "quota_exhausted"),
        (Refused("create Pod", status=403, message="admission webhook says no"), "manifest_refused"),
        (Refused("create Pod", status=403, message="is forbidden"), "access_denied"),
    ],
)
@pytest.mark.parametrize("kind", [Kind.POD, Kind.NETWORK_POLICY])
async def test_a_refusal_is_translated_and_nothing_is_left(kind, error, code):
    async with world() as w:
        preflight, port = w.replica()
        port.fail(calls("create", kind), error)
        report = await preflight.run_report(force=False)
        await w.drained()

    assert (report.ok, report.code) == (False, code)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [(Kind.POD, "priorityClassName", "low"), (Kind.NETWORK_POLICY, "podSelector", {"matchLabels": {"app": "other"}})],
)
async def test_a_changed_object_is_no_canary_of_ours(kind, field, value):
    async with world() as w:
        w.cluster.admission.append(lambda _, of, body: _changed(body, field, value) if of is kind else body)
        report, _ = await report_of(w)
        await w.drained()

    assert report.code == "attestation_failed"
    assert {violation["object"] for violation in report.violations} == {kind.value.kind.lower()}
    assert field in report.message


def _changed(body, field, value):
    return body | {"spec": body["spec"] | {field: value}}


@pytest.mark.parametrize(
    ("waiting", "code", "within"),
    [
        ({"reason": "ErrImagePull", "message": "no such manifest"}, "pod_start_failed", 1),
        ({"reason": "CreateContainerConfigError", "message": "no such key"}, "pod_start_failed", 1),
        ({"reason": "ContainerCreating"}, "pod_start_timeout", 20),
    ],
)
async def test_a_canary_that_does_not_start_is_given_up_with_its_reason(waiting, code, within):
    async with world(node=False, bounds={"preflight": 20}) as w:
        preflight, port = w.replica()
        port.before(calls("watch", Kind.POD), lambda: _status(w, waiting))
        report = await preflight.run_report(force=False)

        assert report.code == code
        assert waiting.get("message", "") in report.message
        assert w.cluster.clock.monotonic() <= within
        await w.drained()


async def _status(w, waiting):
    (pod,) = w.cluster.store.items(Kind.POD, NAMESPACE)
    state = {"name": names.CANARY, "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Pending", "containerStatuses": [state | {"state": {"waiting": waiting}}]}
    w.cluster.store.edit((Kind.POD, NAMESPACE, pod["metadata"]["name"]), lambda body: body.update(status=status))


async def test_a_pod_that_nobody_takes_is_told_in_the_schedulers_words():
    async def unscheduled():
        (pod,) = w.cluster.store.items(Kind.POD, NAMESPACE)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
        key = (Kind.POD, NAMESPACE, pod["metadata"]["name"])
        w.cluster.store.edit(key, lambda body: body.update(status={"phase": "Pending", "conditions": [condition]}))

    async with world(node=False, bounds={"preflight": 20}) as w:
        preflight, port = w.replica()
        port.before(calls("watch", Kind.POD), unscheduled)
        report = await preflight.run_report(force=False)

    assert report.code == "pod_start_timeout"
    assert "0/3 nodes" in report.message


async def test_a_canary_that_says_nothing_is_given_up_at_its_bound():
    async with world(bounds={"first_proof": 8}) as w:
        w.answers = says_nothing
        report, _ = await report_of(w)

        assert report.code == "probe_unusable"
        assert 18 <= w.cluster.clock.monotonic() <= 25
        await w.drained()


async def test_the_experiment_as_a_whole_is_bounded():
    async with world(bounds={"first_proof": 60, "preflight": 10}) as w:
        w.answers = says_nothing
        report, _ = await report_of(w)

        assert (report.ok, report.code) == (False, "probe_unusable")
        assert w.cluster.clock.monotonic() <= 12


async def test_a_log_that_is_cut_is_read_again():
    async with world() as w:
        preflight, port = w.replica()
        port.fail(calls("log"), Unreachable("log"), times=2)
        assert (await preflight.run_report(force=False)).ok


async def test_a_canary_that_is_deleted_meanwhile_ends_the_experiment():
    async with world() as w:
        preflight, port = w.replica()

        async def deleted():
            (pod,) = w.cluster.store.items(Kind.POD, NAMESPACE)
            w.cluster.store.remove((Kind.POD, NAMESPACE, pod["metadata"]["name"]))

        port.before(calls("log"), deleted)
        report = await preflight.run_report(force=False)

    assert (report.ok, report.code) == (False, "probe_unusable")


@pytest.mark.parametrize("after", [0.2, 1.5, 3.0, 5.0])
async def test_a_cancellation_at_any_time_leaves_no_canary(after):
    async with world() as w:
        task = asyncio.create_task(w.replica()[0].run_report(force=False))
        await asyncio.sleep(after)
        assert w.left()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        await w.drained()


async def test_a_cancellation_during_the_create_leaves_no_canary():
    async with world() as w:
        preflight, port = w.replica()
        under_way = asyncio.Event()

        async def carried_out_and_never_answered():
            await w.cluster.create(Kind.POD, NAMESPACE, port.made("create", Kind.POD)[0].body)
            under_way.set()
            await asyncio.sleep(3600)

        port.before(calls("create", Kind.POD), carried_out_and_never_answered)
        task = asyncio.create_task(preflight.run_report(force=False))
        await under_way.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        await w.drained()


@pytest.mark.parametrize("kind", [Kind.POD, Kind.NETWORK_POLICY])
async def test_a_create_that_was_repeated_after_a_lost_answer_finds_our_own(kind):
    async with world() as w:
        preflight, port = w.replica()

        async def carried_out():
            await w.cluster.create(kind, NAMESPACE, port.made("create", kind)[0].body)

        port.before(calls("create", kind), carried_out)
        assert (await preflight.run_report(force=False)).ok
        await w.drained()


async def test_a_deletion_that_fails_hides_no_result():
    async with world() as w:
        preflight, port = w.replica()
        port.fail(calls("delete", Kind.POD), Refused("delete", status=403), times=2)
        assert (await preflight.run_report(force=False)).ok


@pytest.mark.parametrize(("rule", "code"), [("record", None), ("refuse", "node_reachable")])
async def test_a_reachable_node_is_recorded_or_refused(rule, code):
    def answers(kind, config):
        exposed = {"nodeExposure": ["kubelet 10.0.0.1:10250"]} if kind == "policed" else {}
        return healthy_canary(kind, config) | exposed

    async with world(node_exposure=rule) as w:
        w.answers = answers
        report, _ = await report_of(w)

    assert report.code == code
    assert report.node_exposure == ("kubelet 10.0.0.1:10250",)
