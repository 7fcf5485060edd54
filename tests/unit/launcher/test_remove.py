import asyncio

import pytest
from stage_cluster import NAMESPACE, NOW, TOKEN, StageCluster, StoredOnly, TestClock, run_in, store_of

from launcher.cluster.errors import Gone, Unreachable
from launcher.cluster.port import Kind
from launcher.errors import PodgateError
from launcher.remove import Remover
from records.model import Phase, Result
from records.transitions import Ended

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
def time():
    return TestClock()


@pytest.fixture
def remover(cluster, store, observer, time):
    return Remover(cluster, store, observer, namespace=NAMESPACE, clock=time.clock)


def raising(error):
    def strike():
        raise error

    return strike


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.LOST])
async def test_a_terminal_run_becomes_a_tombstone_with_its_evidence(cluster, store, remover, phase):
    await run_in(store, phase)
    cluster.pod(uid="pod-1")
    record = (await remover.remove(TOKEN)).record
    assert (record.phase, record.result, record.evidence.start_id) == (Phase.REMOVED, None, "s")
    assert not cluster.has(Kind.POD)


@pytest.mark.parametrize("phase", [Phase.PROVISIONING, Phase.RELEASING, Phase.ACTIVE])
async def test_a_live_run_is_not_removed(cluster, store, remover, phase):
    await run_in(store, phase)
    cluster.pod(uid="pod-1")
    with pytest.raises(PodgateError) as caught:
        await remover.remove(TOKEN)
    assert (caught.value.code, cluster.has(Kind.POD)) == ("job_not_terminal", True)


async def test_a_run_that_ended_unseen_is_looked_at_and_removed(store, observer, remover):
    await run_in(store, Phase.ACTIVE)
    observer.sees = Ended(Phase.FAILED, Result(exit_code=3, reason="worker_failed"), NOW)
    assert (await remover.remove(TOKEN)).record.phase is Phase.REMOVED


async def test_an_unknown_handle_is_told(remover):
    with pytest.raises(PodgateError) as caught:
        await remover.remove(TOKEN)
    assert caught.value.code == "job_not_found"


async def test_the_tombstone_is_written_only_after_the_pod_is_gone(cluster, store, remover):
    await run_in(store, Phase.SUCCEEDED)
    cluster.pod(uid="pod-1")
    cluster.lingering = True
    watching = asyncio.Event()
    cluster.before["watch", Kind.POD].append(watching.set)
    removing = asyncio.ensure_future(remover.remove(TOKEN))
    await watching.wait()
    assert (await store.read(TOKEN)).record.phase is Phase.SUCCEEDED
    cluster.finish()
    assert (await removing).record.phase is Phase.REMOVED


async def test_the_watch_and_not_the_clock_tells_that_the_pod_is_gone(cluster, store, remover, time):
    await run_in(store, Phase.SUCCEEDED)
    cluster.pod(uid="pod-1")
    cluster.lingering = True
    cluster.before["watch", Kind.POD].append(lambda: asyncio.get_running_loop().call_soon(cluster.finish))
    await remover.remove(TOKEN)
    assert time.seconds == 0


async def test_a_pod_that_stays_is_not_confirmed_gone_and_the_record_stays(cluster, store, remover, time):
    await run_in(store, Phase.SUCCEEDED)
    cluster.pod(uid="pod-1")
    cluster.policy(owner_uid="pod-1")
    cluster.lingering = True
    with pytest.raises(PodgateError) as caught:
        await remover.remove(TOKEN)
    assert (caught.value.code, time.seconds) == ("pod_not_confirmed_gone", 60)
    assert (await store.read(TOKEN)).record.phase is Phase.SUCCEEDED
    assert cluster.has(Kind.NETWORK_POLICY)


async def test_calling_again_finishes_what_the_first_could_not(cluster, store, remover):
    await run_in(store, Phase.SUCCEEDED)
    cluster.pod(uid="pod-1")
    cluster.lingering = True
    with pytest.raises(PodgateError):
        await remover.remove(TOKEN)
    cluster.finish()
    assert (await remover.remove(TOKEN)).record.phase is Phase.REMOVED


@pytest.mark.parametrize("error", [Unreachable("watch"), Gone("watch")])
async def test_a_broken_watch_falls_back_to_looking(cluster, store, remover, error):
    await run_in(store, Phase.SUCCEEDED)
    cluster.pod(uid="pod-1")
    cluster.lingering = True
    cluster.before["watch", Kind.POD].append(raising(error))
    cluster.before["watch", Kind.POD].append(cluster.finish)
    assert (await remover.remove(TOKEN)).record.phase is Phase.REMOVED


async def test_a_pod_that_a_stalled_launcher_made_after_the_removal_goes_with_the_second(cluster, store, remover):
    stored = await run_in(store, Phase.SUCCEEDED)
    await remover.remove(TOKEN)
    cluster.pod(record_uid=stored.uid)
    assert (await remover.remove(TOKEN)).record.phase is Phase.REMOVED
    assert not cluster.has(Kind.POD)


async def test_a_pod_of_someone_else_is_left_alone(cluster, store, remover):
    await run_in(store, Phase.SUCCEEDED)
    cluster.pod(uid="foreign")
    await remover.remove(TOKEN)
    assert cluster.has(Kind.POD)


async def test_a_pod_replaced_under_the_deletion_counts_as_gone(cluster, store, remover):
    await run_in(store, Phase.SUCCEEDED)
    cluster.pod(uid="pod-1")
    cluster.before["delete", Kind.POD].append(lambda: cluster.pod(uid="foreign"))
    assert (await remover.remove(TOKEN)).record.phase is Phase.REMOVED
    assert cluster.has(Kind.POD)


async def test_a_reaper_that_was_quicker_is_no_error(cluster, store, remover):
    await run_in(store, Phase.SUCCEEDED)
    cluster.before["replace", Kind.CONFIG_MAP].append(lambda: cluster.finish(Kind.CONFIG_MAP))
    assert (await remover.remove(TOKEN)).record.phase is Phase.SUCCEEDED
