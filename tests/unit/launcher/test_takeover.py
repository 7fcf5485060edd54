"""A launcher dies, or stands still for long, and another one goes on: one pod, one proof, one word in the record."""

import asyncio
from contextlib import asynccontextmanager

import isolation_samples as samples
import pytest
from launch_world import FOR_EVER, NAME, Freeze, execs, launching, refused, state, writes_phase

from launcher.cluster.port import Kind
from launcher.settings import Bounds, Settings
from launcher.testing.fake_script import At, Script
from launcher.testing.interceptor import calls
from launcher.testing.virtual_time import VirtualLoop
from records.model import Phase

pytestmark = pytest.mark.anyio

LEASE = 31
WITH_SECRET = samples.spec(command=["true"], capability="model")

PROVISIONING = {
    "pod": calls("create", Kind.POD, NAME),
    "policy": calls("create", Kind.NETWORK_POLICY, NAME),
    "secret": calls("create", Kind.SECRET),
    "pod's name": calls("replace", Kind.CONFIG_MAP, NAME),
    "watch": calls("watch", Kind.POD, NAME),
    "following": execs("follow"),
    "seed": execs("receive"),
    "second attestation": calls("get", Kind.NETWORK_POLICY, NAME),
    "release": writes_phase("releasing"),
}


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


def opened(it):
    """Match whatever is asked once the gate has opened."""
    return lambda _: it.pod is not None and "terminated" in state(it.pod, "gate")


@asynccontextmanager
async def holding(it, replica, spec, moment, **how):
    """A launch that stands still at a moment, and goes on no sooner than its test lets it."""
    freeze = Freeze(it, replica, moment, **how)
    launch = asyncio.create_task(replica.launch(spec))
    try:
        async with asyncio.timeout(120):
            await freeze.frozen.wait()
        yield launch, freeze
    finally:
        launch.cancel()
        await asyncio.gather(launch, return_exceptions=True)


async def released_once(it):
    """Hold that there was one pod, that its worker runs, and that the second launcher had it."""
    record = await it.record()
    assert (len(it.pods_ever()), "running" in state(it.pod, "worker")) == (1, True)
    assert [entry.phase for entry in record.timeline] == ["provisioning", "releasing", "active"]
    assert (record.lease.epoch, record.pod.uid) == (2, it.pod["metadata"]["uid"])
    assert record.lease.holder.startswith("replica-b/")


@pytest.mark.parametrize("passes", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("moment", [*list(PROVISIONING)[:-1]])
async def test_a_launcher_that_died_while_provisioning_is_succeeded_by_another(moment, passes):
    async with launching() as it, holding(it, it.replica(), WITH_SECRET, PROVISIONING[moment], passes=passes):
        await asyncio.sleep(LEASE)
        await it.replica("replica-b").launch(WITH_SECRET)
        await released_once(it)
        assert [len(it.items(kind)) for kind in (Kind.NETWORK_POLICY, Kind.SECRET)] == [1, 1]


async def test_as_long_as_its_lease_lasts_nobody_takes_a_launch_over():
    async with launching() as it, holding(it, it.replica(), it.spec, PROVISIONING["seed"]):
        other = it.replica("replica-b")
        await other.launch(it.spec)
        assert [call.method for call in other.port.calls] == ["get"]
        assert (await it.record()).lease.epoch == 1


async def test_a_launch_that_takes_minutes_keeps_its_lease():
    async with launching() as it:
        one = it.replica()

        async def hold():
            await asyncio.sleep(150)

        one.port.before(PROVISIONING["seed"], hold)
        launch = asyncio.create_task(one.launch(it.spec))
        for _ in range(4):
            await asyncio.sleep(35)
            await it.replica("replica-b").launch(it.spec)
        await launch
        assert ((await it.record()).lease.epoch, len(it.pods_ever())) == (1, 1)


async def test_only_one_of_two_takes_over():
    async with launching() as it, holding(it, it.replica(), it.spec, PROVISIONING["policy"]):
        await asyncio.sleep(LEASE)
        other = it.replica("replica-b")
        await asyncio.gather(other.launch(it.spec), other.launch(it.spec), it.replica("replica-b/2").launch(it.spec))
        await released_once(it)


# --- in releasing ---


async def test_a_launcher_that_died_before_its_marker_is_succeeded_without_a_second_seed():
    async with launching() as it, holding(it, it.replica(), it.spec, writes_phase("releasing"), passes=True):
        await asyncio.sleep(LEASE)
        assert ((await it.record()).phase, it.marked()) == (Phase.RELEASING, False)
        other = it.replica("replica-b")
        await other.launch(it.spec)
        await released_once(it)
        assert not [call for call in other.port.calls if execs("receive")(call)]


async def test_a_worker_that_runs_needs_no_second_launcher():
    async with launching() as it, holding(it, it.replica(), it.spec, writes_phase("active")):
        await asyncio.sleep(LEASE)
        other = it.replica("replica-b")
        handle = await other.launch(it.spec)
        assert (other.port.made("create"), (await other.launcher.status(handle)).phase) == ([], "active")


async def test_a_gate_that_opened_for_a_dead_launcher_is_left_to_the_observers():
    script = Script(worker_starts_after=50, worker=FOR_EVER)
    async with launching(script) as it, holding(it, it.replica(), it.spec, opened(it)):
        await asyncio.sleep(LEASE)
        other = it.replica("replica-b")
        handle = await other.launch(it.spec)
        assert (other.port.made("create"), (await it.record()).phase) == ([], Phase.RELEASING)
        await asyncio.sleep(30)
        assert (await other.launcher.status(handle)).state == "running"


async def test_a_prover_that_restarted_after_the_release_was_recorded_is_refused():
    script, moment = Script(prover_restarts=At("standing", 20)), writes_phase("releasing")
    async with launching(script) as it, holding(it, it.replica(), it.spec, moment, passes=True):
        await asyncio.sleep(LEASE)
        error = await refused(it.replica("replica-b").launch(it.spec))
        await it.drained()
        assert (error.code, (await it.record()).result.reason) == ("gate_restarted", "gate_restarted")
        assert (it.started("worker"), it.marked()) == (False, False)


async def test_what_was_changed_between_release_and_take_over_is_found():
    async with launching() as it, holding(it, it.replica(), it.spec, writes_phase("releasing"), passes=True):
        it.cluster.store.edit(it.life.key, lambda pod: pod["metadata"]["labels"].update(team="x"))
        await asyncio.sleep(LEASE)
        error = await refused(it.replica("replica-b").launch(it.spec))
        assert (error.code, it.marked()) == ("attestation_failed", False)


# --- that cannot be taken over ---


async def abandoned(it, other):
    """Hold that nobody can go on: said so in the record, and cleaned up."""
    error = await refused(other.launch(it.spec))
    record = await it.record()
    await it.drained()
    assert (error.code, record.phase, record.result.reason) == ("launch_abandoned", Phase.FAILED, "launch_abandoned")
    assert (len(it.pods_ever()), it.started("worker")) == (1, False)


@pytest.mark.parametrize("phase", ["provisioning", "releasing"])
async def test_a_pod_that_has_vanished_is_never_made_again(phase):
    moment = PROVISIONING["seed"] if phase == "provisioning" else writes_phase("releasing")
    async with launching() as it, holding(it, it.replica(), it.spec, moment, passes=True):
        it.cluster.store.remove(it.life.key)
        await asyncio.sleep(LEASE)
        await abandoned(it, it.replica("replica-b"))


async def test_an_upgraded_replica_does_not_go_on_with_what_it_would_not_build():
    async with launching() as it, holding(it, it.replica(), it.spec, PROVISIONING["seed"]):
        await asyncio.sleep(LEASE)
        newer = Settings(isolation=samples.options(stop_grace_seconds=11), bounds=Bounds())
        await abandoned(it, it.replica("replica-b", settings=newer))


async def test_after_the_provision_bound_nobody_takes_over():
    async with launching() as it, holding(it, it.replica(), it.spec, PROVISIONING["seed"]):
        await asyncio.sleep(301)
        await abandoned(it, it.replica("replica-b"))


# --- the old holder wakes up ---


@pytest.mark.parametrize("moment", PROVISIONING.values(), ids=PROVISIONING)
async def test_a_holder_that_wakes_up_after_a_take_over_changes_nothing(moment):
    async with launching() as it, holding(it, it.replica(), WITH_SECRET, moment) as (launch, freeze):
        await asyncio.sleep(LEASE)
        await it.replica("replica-b").launch(WITH_SECRET)
        before = await it.record()
        freeze.thaw()
        error = await refused(launch)
        await asyncio.sleep(20)
        assert (error.code, await it.record()) == ("launch_superseded", before)
        await released_once(it)


@pytest.mark.parametrize("moment", PROVISIONING.values(), ids=PROVISIONING)
async def test_two_that_work_at_the_same_time_end_in_one_release(moment):
    async with launching() as it, holding(it, it.replica(), WITH_SECRET, moment) as (launch, freeze):
        await asyncio.sleep(LEASE)
        other = asyncio.create_task(it.replica("replica-b").launch(WITH_SECRET))
        await it.until(lambda: it.recorded_epoch() == 2, 10)
        freeze.thaw()
        error = await refused(launch)
        await other
        assert error.code == "launch_superseded"
        await released_once(it)


async def test_a_holder_that_wakes_up_before_anybody_came_goes_on():
    async with launching() as it, holding(it, it.replica(), it.spec, PROVISIONING["second attestation"]) as frozen:
        launch, freeze = frozen
        await asyncio.sleep(200)
        freeze.thaw()
        await launch
        assert ((await it.record()).lease.epoch, it.started("worker")) == (1, True)
