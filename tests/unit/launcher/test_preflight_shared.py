"""One preflight for all replicas: who makes it, who waits, and what becomes of it when its maker does not come back."""

import asyncio

import pytest
from preflight_world import NAMESPACE, without_enforcement, world

from isolation import labels
from launcher.cluster.errors import Conflict, NotFound, Refused, Unreachable
from launcher.cluster.port import Kind
from launcher.errors import PodgateError
from launcher.settings import Settings
from launcher.testing.interceptor import calls
from launcher.testing.virtual_time import VirtualLoop

pytestmark = pytest.mark.anyio

ONE_EXPERIMENT = ["open", "policed"]


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


async def test_a_fresh_success_costs_one_request():
    async with world() as w:
        made = await w.replica("a")[0].ensure()
        other, port = w.replica("b")

        assert await other.ensure() == made
        assert [call.method for call in port.calls] == ["get"]


async def test_replicas_that_start_together_make_one_experiment_and_share_its_result():
    async with world() as w:
        reports = await asyncio.gather(*(w.replica(name)[0].ensure() for name in "abc"))

        assert w.asked == ONE_EXPERIMENT
        assert len(set(reports)) == 1


async def test_two_launches_of_one_replica_make_one_experiment():
    async with world() as w:
        preflight, _ = w.replica()
        one, other = await asyncio.gather(preflight.ensure(), preflight.ensure())

        assert w.asked == ONE_EXPERIMENT
        assert one == other


async def test_who_waits_hears_of_a_failure_too():
    async with world(bounds={"first_proof": 8}) as w:
        w.answers = without_enforcement
        results = await asyncio.gather(*(w.replica(name)[0].ensure() for name in "ab"), return_exceptions=True)

        assert w.asked == ONE_EXPERIMENT
        assert [(error.code, error.stage) for error in results] == [("policy_not_enforced", "preflight")] * 2


@pytest.mark.parametrize(("age", "experiments"), [(599, 1), (601, 2)])
async def test_a_success_holds_for_its_time(age, experiments):
    async with world() as w:
        await w.replica()[0].ensure()
        await asyncio.sleep(age)
        await w.replica("b")[0].ensure()

        assert w.asked == ONE_EXPERIMENT * experiments


@pytest.mark.parametrize(("age", "experiments"), [(14, 1), (16, 2)])
async def test_a_failure_holds_for_a_short_time(age, experiments):
    async with world() as w:
        w.answers = without_enforcement
        await w.replica()[0].run_report(force=False)
        await asyncio.sleep(age)
        await w.replica("b")[0].run_report(force=False)

        assert w.asked == ONE_EXPERIMENT * experiments


async def test_times_are_those_of_the_servers_clock():
    async with world() as w:
        report = await w.replica()[0].ensure()
        assert report.at == w.state["report"]["at"]
        w.cluster.clock.step(601)
        await w.replica("b")[0].ensure()

        assert w.asked == ONE_EXPERIMENT * 2


async def test_a_forced_one_is_made_again_and_replaces_the_result():
    async with world() as w:
        first = await w.replica()[0].ensure()
        await asyncio.sleep(1)
        second = await w.replica("b")[0].run_report(force=True)

        assert w.asked == ONE_EXPERIMENT * 2
        assert second.at > first.at
        assert w.state["report"] == second.as_json()


async def test_a_crashed_makers_lease_is_waited_for_and_then_taken():
    async with world() as w:
        await w.replica("crashed")[0].ensure()
        w.lease_for(20)
        before = w.cluster.clock.monotonic()

        assert (await w.replica("b")[0].ensure()).ok
        assert w.asked == ONE_EXPERIMENT * 2
        assert 20 <= w.cluster.clock.monotonic() - before < 30


async def test_a_cancelled_maker_makes_nobody_wait():
    async with world() as w:
        maker = asyncio.create_task(w.replica("a")[0].ensure())
        await asyncio.sleep(1)
        maker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await maker

        assert w.state == {}
        before = w.cluster.clock.monotonic()
        await w.replica("b")[0].ensure()
        assert w.cluster.clock.monotonic() - before < 10


async def test_a_cancellation_stays_one_when_the_lease_cannot_be_given_back():
    async with world() as w:
        preflight, port = w.replica()
        maker = asyncio.create_task(preflight.ensure())
        await asyncio.sleep(1)
        port.fail(calls("replace"), Refused("replace", status=403))
        maker.cancel()

        with pytest.raises(asyncio.CancelledError):
            await maker
        assert "expiresAt" in w.state


async def test_a_maker_that_loses_the_api_server_gives_its_lease_back():
    async with world() as w:
        preflight, port = w.replica()
        port.fail(calls("create", Kind.NETWORK_POLICY), Unreachable("create", status=503))

        with pytest.raises(Unreachable):
            await preflight.ensure()

        assert w.state == {}
        await w.drained()


@pytest.mark.parametrize("method", ["create", "replace"])
async def test_a_lease_whose_answer_was_lost_is_known_again(method):
    async with world() as w:
        if method == "replace":
            await w.replica("earlier")[0].ensure()
            await asyncio.sleep(700)
        preflight, port = w.replica()
        port.lose_answer(calls(method, Kind.CONFIG_MAP))
        before = w.cluster.clock.monotonic()

        assert (await preflight.ensure()).ok
        assert w.cluster.clock.monotonic() - before < 10


async def test_a_result_whose_answer_was_lost_is_shared_all_the_same():
    async with world() as w:
        preflight, port = w.replica()
        port.lose_answer(calls("replace", Kind.CONFIG_MAP))

        report = await preflight.ensure()

        assert w.state["report"] == report.as_json()


async def test_a_result_that_was_not_written_is_written_again():
    async with world() as w:
        preflight, port = w.replica()
        port.fail(calls("replace", Kind.CONFIG_MAP), Unreachable("replace", status=504))

        report = await preflight.ensure()

        assert w.state["report"] == report.as_json()
        assert len(port.made("replace")) == 2


async def test_a_result_that_cannot_be_shared_still_counts_for_its_maker():
    async with world() as w:
        preflight, port = w.replica()
        port.fail(calls("replace", Kind.CONFIG_MAP), Refused("replace", status=403))
        assert (await preflight.ensure()).ok


async def test_a_maker_whose_lease_ran_out_leaves_the_next_ones_alone():
    async with world() as w:
        preflight, port = w.replica()
        port.fail(calls("replace", Kind.CONFIG_MAP), Conflict("replace", status=409))

        assert (await preflight.ensure()).ok
        assert len(port.made("replace")) == 1


def result(at):
    report = {"ok": True, "code": None, "message": None, "findings": [], "policyLatencySeconds": None}
    return {"report": report | {"nodeExposure": [], "violations": [], "at": at}}


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        [],
        {},
        {"report": {"ok": True}},
        result("yesterday"),
        result("2026-01-01T00:00:00"),
        result("2030-01-01T00:00:00Z"),
        {"expiresAt": "2030-01-01T00:00:00Z", "holder": "x"},
        {"expiresAt": "2026-01-01T00:01:00", "holder": "x"},
        {"expiresAt": 7},
    ],
    ids=str,
)
async def test_content_that_no_replica_wrote_lately_is_neither_believed_nor_waited_for(content):
    async with world() as w:
        await w.replica()[0].ensure()
        w.put_state(content)
        before = w.cluster.clock.monotonic()

        assert (await w.replica("b")[0].ensure()).ok
        assert w.asked == ONE_EXPERIMENT * 2
        assert w.cluster.clock.monotonic() - before < 10


async def test_what_a_replica_wrote_just_now_is_believed():
    async with world() as w:
        await w.replica()[0].ensure()
        w.put_state(result(w.cluster.now().isoformat()))
        await w.replica("b")[0].ensure()

        assert w.asked == ONE_EXPERIMENT


async def test_waiting_for_others_is_bounded():
    async with world(bounds={"preflight": 10, "preflight_success_kept": 0}) as w:
        await w.replica()[0].ensure()
        waiting, port = w.replica("b")
        rule = port.before(calls("get", Kind.CONFIG_MAP), lambda: _again(w))
        rule.times = 1000
        before = w.cluster.clock.monotonic()

        report = await waiting.run_report(force=False)

        assert (report.ok, report.code) == (False, "probe_unusable")
        assert 30 <= w.cluster.clock.monotonic() - before <= 31


async def _again(w):
    w.lease_for(10)


async def test_a_namespace_that_is_missing_is_said_at_once():
    async with world(node=False) as w:
        await w.cluster.delete(Kind.NAMESPACE, None, NAMESPACE)
        preflight, port = w.replica()

        with pytest.raises(NotFound):
            await preflight.ensure()
        assert [call.method for call in port.calls] == ["get", "create"]


async def test_a_deleted_result_is_made_again():
    async with world() as w:
        await w.replica()[0].ensure()
        await w.cluster.delete(Kind.CONFIG_MAP, NAMESPACE, w.shared["metadata"]["name"])
        assert (await w.replica("b")[0].ensure()).ok


async def test_other_settings_have_a_result_of_their_own():
    async with world() as w:
        await w.replica()[0].ensure()
        await w.replica("b", Settings(isolation=w.settings.isolation, node_exposure="refuse"))[0].ensure()

        names = [body["metadata"]["name"] for body in w.cluster.store.items(Kind.CONFIG_MAP, NAMESPACE)]
        assert w.asked == ONE_EXPERIMENT * 2
        assert len(names) == 2


async def test_the_shared_object_is_marked_as_ours_so_that_the_reaper_takes_it():
    async with world() as w:
        await w.replica()[0].ensure()
        assert w.shared["metadata"]["labels"] == labels.managed("preflight")


async def test_a_failed_result_is_raised_with_its_violations():
    async with world() as w:
        w.cluster.admission.append(_with_a_sidecar)
        with pytest.raises(PodgateError) as caught:
            await w.replica()[0].ensure()
        w.cluster.admission.clear()
        with pytest.raises(PodgateError) as again:
            await w.replica("b")[0].ensure()

        assert caught.value.code == again.value.code == "attestation_failed"
        assert caught.value.violations
        assert list(again.value.violations) == list(caught.value.violations)


def _with_a_sidecar(verb, kind, body):
    if kind is Kind.POD:
        body["spec"]["containers"].append({"name": "mesh", "image": "registry.test/mesh:1"})
    return body
