"""A launch that nothing disturbs, and launches that find something there already."""

import asyncio

import isolation_samples as samples
import pytest
from launch_world import CAPABILITY, FOR_EVER, NAME, NAMESPACE, TOKEN, launching, owners, refused, state, writes_phase
from preflight_world import without_enforcement

from isolation import names
from launcher.cluster.port import Kind
from launcher.errors import PodgateError
from launcher.testing.fake_script import Script, Worker
from launcher.testing.interceptor import calls
from launcher.testing.virtual_time import VirtualLoop
from records.model import Phase

pytestmark = pytest.mark.anyio

REQUESTS, EXECS = 16, 3
"""What one launch may cost an API server, watches included."""


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


async def test_a_healthy_launch_leaves_one_pod_whose_worker_runs():
    async with launching() as it:
        await it.replica().launch(it.spec)
        assert it.pods_ever() == [it.pod["metadata"]["uid"]]
    assert state(it.pod, "gate")["terminated"]["exitCode"] == 0
    assert "running" in state(it.pod, "worker")


async def test_record_owns_pod_and_pod_owns_policy_and_secret():
    async with launching() as it:
        await it.replica().launch(samples.spec(command=["true"], capability="model"))
        stored = await it.store.read(TOKEN)
        (policy,), (secret,) = it.items(Kind.NETWORK_POLICY), it.items(Kind.SECRET)
    assert owners(it.pod) == [stored.uid]
    assert owners(policy) == owners(secret) == [it.pod["metadata"]["uid"]]


async def test_the_record_tells_the_whole_course():
    async with launching() as it:
        await it.replica().launch(it.spec)
        record = await it.record()
    assert [entry.phase for entry in record.timeline] == ["provisioning", "releasing", "active"]
    assert (record.pod.uid, record.pod.name) == (it.pod["metadata"]["uid"], NAME)
    assert record.deadline_at is not None
    assert (record.lease.epoch, record.stop, record.result) == (1, None, None)


async def test_the_evidence_says_why_the_run_was_allowed_to_start():
    async with launching(Script(node_exposure=("10.231.0.2:10250",), worker=FOR_EVER)) as it:
        await it.replica().launch(it.spec)
        evidence = (await it.record()).evidence
        (policy,) = it.items(Kind.NETWORK_POLICY)
        seed = it.life.storage.seed
    unsaid = {name for name, value in evidence if value in (None, (), {})}
    assert unsaid == {"blind_since", "disruption", "violations", "end", "gate_exit", "gate_message"}
    assert (evidence.pod_uid, evidence.policy_uid) == (it.pod["metadata"]["uid"], policy["metadata"]["uid"])
    assert (evidence.seed_sha256, evidence.seed_bytes) == (seed["sha256"], seed["bytes"])
    assert evidence.start_id == it.life.prover.start_id
    assert evidence.warnings == ("runtime_class_unset", "node_reachable")
    assert set(evidence.image_ids) == {"prover", "gate", "keeper", "worker"}


async def test_the_marker_waits_until_the_release_is_recorded():
    async with launching() as it:
        one, seen = it.replica(), []

        async def slow():
            await asyncio.sleep(8)
            seen.append((it.marked(), "running" in state(it.pod, "gate")))

        one.port.before(writes_phase("releasing"), slow)
        await one.launch(it.spec)
    assert seen == [(False, True)]
    assert it.marked()


async def test_the_worker_is_not_even_created_before_the_gate_has_opened():
    async with launching() as it:
        await it.replica().launch(it.spec)
        history = [change.object for change in it._changes(Kind.POD) if change.type == "MODIFIED"]
    closed = [pod for pod in history if "terminated" not in state(pod, "gate")]
    assert len(closed) > 2
    assert not any(state(pod, "worker").keys() - {"waiting"} for pod in closed)


async def test_a_launch_costs_few_requests_and_execs():
    async with launching() as it:
        one = it.replica()
        await one.launch(it.spec)
        costs = [f"{call.method} {call.kind.value.kind if call.kind else ''}" for call in one.port.calls]
    assert len(costs) <= REQUESTS, costs
    assert costs.count("exec Pod") <= EXECS, costs


async def test_progress_is_told_in_the_order_of_the_steps():
    async with launching() as it:
        one = it.replica()
        await one.launch(it.spec)
    assert sorted(one.stages[2:4]) == ["proven", "seeded"]
    assert one.stages[:2] + one.stages[4:] == ["created", "gate", "released", "started"]
    assert [event.at_seconds for event in one.told] == sorted(event.at_seconds for event in one.told)


async def test_a_worker_that_ends_at_once_was_launched_all_the_same():
    async with launching(Script(worker=Worker(seconds=0.0))) as it:
        one = it.replica()
        handle = await one.launch(it.spec)
        assert (await one.launcher.status(handle)).state == "succeeded"


async def test_the_capabilitys_value_is_in_the_secret_and_nowhere_else():
    async with launching() as it:
        one = it.replica()
        await one.launch(samples.spec(command=["true"], capability="model"))
        (secret,) = it.items(Kind.SECRET)
        elsewhere = [change.object for change in it.cluster.store.history if change.key[0] is not Kind.SECRET]
    assert set(secret["data"]) == {names.CAPABILITY_KEY}
    assert CAPABILITY not in str((elsewhere, one.told))


async def test_a_shared_policy_is_nobodys_and_serves_the_next_run():
    async with launching(network_policy_scope="shared") as it:
        one = it.replica()
        await one.launch(it.spec)
        await one.launch(samples.spec(runId="run-2", command=["true"]))
        (policy,) = it.cluster.store.items(Kind.NETWORK_POLICY, NAMESPACE)
    assert "ownerReferences" not in policy["metadata"]


# --- something is there already ---


async def test_a_second_launch_of_the_same_spec_starts_nothing():
    async with launching() as it:
        first = await it.replica().launch(it.spec)
        other = it.replica("replica-b")
        assert await other.launch(it.spec) == first
    assert [call.method for call in other.port.calls] == ["get"]


async def test_another_spec_under_the_same_run_id_conflicts_and_disturbs_nothing():
    async with launching() as it:
        one = it.replica()
        await one.launch(it.spec)
        before = await it.record()
        error = await refused(one.launch(samples.spec(command=["true"], timeoutSeconds=61)))
        assert (error.code, await it.record()) == ("job_spec_conflict", before)


async def test_two_launchers_at_once_make_one_pod_and_both_have_its_handle():
    async with launching() as it:
        one, other = it.replica(), it.replica("replica-b")
        handles = await asyncio.gather(one.launch(it.spec), other.launch(it.spec))
        assert len(it.pods_ever()) == 1
        assert (await it.record()).phase is Phase.ACTIVE
    assert handles[0] == handles[1]
    assert sorted(len(each.port.made("create", Kind.POD)) for each in (one, other)) == [0, 1]


async def test_one_launcher_that_is_asked_twice_at_once_makes_one_pod():
    async with launching() as it:
        one = it.replica()
        handles = await asyncio.gather(one.launch(it.spec), one.launch(it.spec))
        assert (len(one.port.made("create", Kind.POD)), (await it.record()).phase) == (1, Phase.ACTIVE)
    assert handles[0] == handles[1]


async def test_two_different_specs_at_once_give_one_run_and_one_conflict():
    async with launching() as it:
        other = samples.spec(command=["false"])
        both = (it.replica().launch(it.spec), it.replica("replica-b").launch(other))
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        assert len(it.pods_ever()) == 1
    errors = [each.code for each in outcomes if isinstance(each, PodgateError)]
    assert errors == ["job_spec_conflict"]


@pytest.mark.parametrize("worker", [Worker(), Worker(exit_code=3)])
async def test_a_run_that_has_ended_is_not_started_again(worker):
    async with launching(Script(worker=worker)) as it:
        one = it.replica()
        handle = await one.launch(it.spec)
        await asyncio.sleep(5)
        before = await one.launcher.status(handle)
        await it.replica("replica-b").launch(it.spec)
        assert before.state in ("succeeded", "failed")
        assert (await one.launcher.status(handle), len(it.pods_ever())) == (before, 1)


async def test_a_removed_run_is_not_started_again():
    async with launching(Script(worker=Worker())) as it:
        one = it.replica()
        handle = await one.launch(it.spec)
        await asyncio.sleep(5)
        await one.launcher.remove(handle)
        await it.drained()
        assert await one.launch(it.spec) == handle
        assert ((await it.record()).phase, it.left, len(it.pods_ever())) == (Phase.REMOVED, [], 1)


async def test_a_run_that_was_stopped_before_its_launch_is_never_started():
    async with launching() as it:
        one = it.replica()
        await one.launcher.stop(one.launcher.planned_handle(it.spec))
        await one.launch(it.spec)
        assert ((await it.record()).phase, it.pods_ever()) == (Phase.STOPPED, [])


async def test_a_relaunch_looks_neither_at_preflight_nor_at_workspace(tmp_path):
    spec = samples.spec(command=["true"], workspace=str(tmp_path / "job"))
    (tmp_path / "job").mkdir()
    async with launching() as it:
        handle = await it.replica().launch(spec)
        (tmp_path / "job").rmdir()
        assert await it.replica("replica-b").launch(spec) == handle


# --- refused before anything is created ---

BAD = {
    "workspace": ({"workspace": "/nowhere/at/all"}, "workspace_invalid"),
    "input": ({"input": "/nowhere/at/all.json"}, "input_invalid"),
    "egress profile": ({"egress": "mail"}, "job_spec_invalid"),
    "unknown capability": ({"capability": "moon"}, "job_spec_invalid"),
    "unfit capability": ({"capability": "short"}, "job_spec_invalid"),
}


@pytest.mark.parametrize(("fields", "code"), BAD.values(), ids=BAD)
async def test_bad_input_is_refused_before_anything_is_created(fields, code):
    async with launching(preflight=False) as it:
        one = it.replica()
        error = await refused(one.launch(samples.spec(command=["true"], **fields)))
    assert error.code == code
    assert {call.method for call in one.port.calls} == {"get"}


async def test_a_failed_preflight_starts_nothing():
    async with launching(preflight=False) as it:
        it.node.canary = without_enforcement
        error = await refused(it.replica().launch(it.spec))
        assert (error.code, error.stage) == ("policy_not_enforced", "preflight")
        assert (await it.record(), it.pods_ever()) == (None, [])


async def test_launches_beyond_the_limit_wait_for_their_turn():
    async with launching(bounds={"concurrent_launches": 1}) as it:
        one, seen = it.replica(), []
        second = samples.spec(runId="run-2", command=["true"])

        async def look():
            seen.append((await it.record()).phase)

        pod = names.run_name(names.token("run-2"))
        one.port.before(calls("create", Kind.POD, pod), look)
        await asyncio.gather(one.launch(it.spec), one.launch(second))
        assert [life.status["worker"].runs for life in it.node.lives.values() if life.name in (NAME, pod)] == [
            True,
            True,
        ]
    assert seen == [Phase.ACTIVE]
