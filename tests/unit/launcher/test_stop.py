from contextlib import suppress

import pytest
from stage_cluster import NAME, NAMESPACE, NOW, TOKEN, StageCluster, StoredOnly, fresh, run_in, store_of

from launcher.cluster.errors import Unreachable
from launcher.cluster.port import Kind
from launcher.recordport import NAMING
from launcher.stop import Stopper
from records.codec import to_object
from records.model import Phase, PodRef, Result
from records.transitions import Ended, PodNamed, StopRequested

pytestmark = pytest.mark.anyio


@pytest.fixture
def cluster():
    return StageCluster()


@pytest.fixture
def store(cluster):
    return store_of(cluster)


@pytest.fixture
def observer(store):
    return StoredOnly(store)


@pytest.fixture
def stopper(cluster, store, observer):
    return Stopper(cluster, store, observer, namespace=NAMESPACE)


def raising(error):
    def strike():
        raise error

    return strike


async def test_an_active_run_is_stopped_and_its_pod_deleted_with_grace(cluster, store, stopper):
    await run_in(store, Phase.ACTIVE)
    cluster.pod(uid="pod-1")
    record = (await stopper.stop(TOKEN, "enough")).record
    assert (record.phase, record.result.exit_code, record.result.message) == (Phase.STOPPED, 143, "enough")
    assert cluster.deleted == [(Kind.POD, NAME, 10)]


async def test_a_worker_that_may_have_run_is_never_called_isolated_to_its_end(store, stopper):
    await run_in(store, Phase.ACTIVE)
    assert (await stopper.stop(TOKEN)).record.evidence.end == "unknown"


async def test_the_intent_is_recorded_before_the_pod_is_touched(cluster, store, stopper):
    await run_in(store, Phase.ACTIVE)
    cluster.pod(uid="pod-1")
    cluster.before["delete", Kind.POD].append(raising(Unreachable("delete")))
    with pytest.raises(Unreachable):
        await stopper.stop(TOKEN, "enough")
    record = (await store.read(TOKEN)).record
    assert (record.phase, record.stop.reason) == (Phase.ACTIVE, "enough")


async def test_a_stop_that_failed_half_way_is_finished_by_the_next(cluster, store, stopper):
    await run_in(store, Phase.ACTIVE)
    cluster.pod(uid="pod-1")
    cluster.before["delete", Kind.POD].append(raising(Unreachable("delete")))
    with suppress(Unreachable):
        await stopper.stop(TOKEN, "first")
    record = (await stopper.stop(TOKEN, "second")).record
    assert (record.phase, record.result.message, cluster.has(Kind.POD)) == (Phase.STOPPED, "first", False)


async def test_a_worker_that_already_ended_keeps_its_outcome_and_its_pod(cluster, store, observer, stopper):
    await run_in(store, Phase.ACTIVE)
    cluster.pod(uid="pod-1")
    observer.sees = Ended(Phase.FAILED, Result(exit_code=3, reason="worker_failed"), NOW)
    record = (await stopper.stop(TOKEN)).record
    assert (record.phase, record.stop, cluster.has(Kind.POD)) == (Phase.FAILED, None, True)


async def test_a_run_that_ends_between_look_and_intent_keeps_its_outcome(cluster, store, stopper):
    stored = await run_in(store, Phase.ACTIVE)
    cluster.pod(uid="pod-1")
    ended = stored.record.evolve(phase=Phase.FAILED, result=Result(exit_code=3, reason="worker_failed"))
    strike = lambda: cluster.put(Kind.CONFIG_MAP, to_object(ended, NAMING, replacing=stored))  # noqa: E731 - one line
    cluster.before["replace", Kind.CONFIG_MAP].append(strike)
    record = (await stopper.stop(TOKEN)).record
    assert (record.phase, record.stop, cluster.has(Kind.POD)) == (Phase.FAILED, None, True)


async def test_stopping_twice_is_the_same_as_once(store, stopper):
    await run_in(store, Phase.ACTIVE)
    assert await stopper.stop(TOKEN, "a") == await stopper.stop(TOKEN, "b")


async def test_a_launch_without_a_pod_yet_is_stopped(cluster, store, stopper):
    await run_in(store, Phase.PROVISIONING)
    record = (await stopper.stop(TOKEN)).record
    assert (record.phase, record.evidence.end, cluster.deleted) == (Phase.STOPPED, None, [])


async def test_a_pod_that_the_record_does_not_name_yet_is_found_by_its_owner(cluster, store, stopper):
    stored = await run_in(store, Phase.PROVISIONING)
    cluster.pod(record_uid=stored.uid)
    await stopper.stop(TOKEN)
    assert not cluster.has(Kind.POD)


async def test_a_pod_that_is_not_ours_is_left_alone(cluster, store, stopper):
    await run_in(store, Phase.ACTIVE)
    cluster.pod(uid="foreign", record_uid="another-record")
    assert (await stopper.stop(TOKEN)).record.phase is Phase.STOPPED
    assert cluster.has(Kind.POD)


async def test_a_pod_created_after_the_stop_is_deleted_by_the_next_stop(cluster, store, stopper):
    stored = await run_in(store, Phase.PROVISIONING)
    await stopper.stop(TOKEN)
    cluster.pod(record_uid=stored.uid)
    await stopper.stop(TOKEN)
    assert not cluster.has(Kind.POD)


async def test_an_unknown_handle_gets_a_tombstone(store, stopper):
    record = (await stopper.stop(TOKEN, "not wanted")).record
    assert (record.phase, record.run_id, record.result.message) == (Phase.STOPPED, None, "not wanted")
    assert (await store.read(TOKEN)).record == record


async def test_a_launch_that_comes_in_the_same_moment_as_the_tombstone_is_stopped(cluster, stopper):
    strike = lambda: cluster.put(Kind.CONFIG_MAP, to_object(fresh(), NAMING))  # noqa: E731 - one line
    cluster.before["create", Kind.CONFIG_MAP].append(strike)
    record = (await stopper.stop(TOKEN)).record
    assert (record.phase, record.run_id) == (Phase.STOPPED, "run-1")


async def test_a_record_that_vanishes_under_the_stop_leaves_a_tombstone(cluster, store, stopper):
    await run_in(store, Phase.ACTIVE)
    cluster.before["replace", Kind.CONFIG_MAP].append(lambda: cluster.finish(Kind.CONFIG_MAP))
    record = (await stopper.stop(TOKEN)).record
    assert (record.phase, record.run_id) == (Phase.STOPPED, None)


async def test_a_launcher_naming_its_pod_meanwhile_does_not_hinder_the_stop(cluster, store, stopper):
    stored = await run_in(store, Phase.PROVISIONING)
    await store.update(TOKEN, lambda _: StopRequested(NOW, "first"))
    await store.update(TOKEN, lambda _: PodNamed(1, PodRef(uid="pod-1", name=NAME)), known=None)
    cluster.pod(uid="pod-1", record_uid=stored.uid)
    assert (await stopper.stop(TOKEN)).record.phase is Phase.STOPPED
    assert not cluster.has(Kind.POD)
