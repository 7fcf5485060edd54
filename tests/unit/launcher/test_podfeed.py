"""The newest state of one pod, whatever happens to the watches it comes from."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from launch_world import NAME, NAMESPACE

from launcher.cluster.errors import Gone, Refused, Unreachable
from launcher.cluster.port import Kind
from launcher.podfeed import PodFeed
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.interceptor import Interceptor, calls
from launcher.testing.virtual_time import VirtualLoop

pytestmark = pytest.mark.anyio

KEY = (Kind.POD, NAMESPACE, NAME)
POD = {"metadata": {"name": NAME}, "spec": {"containers": []}, "status": {"phase": "Pending"}}


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


@asynccontextmanager
async def following(*, watch_seconds=5.0, arrange=lambda _: None):
    """A feed that runs; ``it.port`` sees its calls."""
    cluster = FakeCluster(namespaces=(NAMESPACE,), watch_seconds=watch_seconds)
    port = Interceptor(cluster)
    arrange(port)
    first = await cluster.create(Kind.POD, NAMESPACE, POD)
    feed = PodFeed(port, NAMESPACE, NAME, first["metadata"]["uid"], sleep=asyncio.sleep)
    feed.cluster, feed.port, feed.task = cluster, port, asyncio.create_task(feed.run(first))
    try:
        yield feed
    finally:
        feed.task.cancel()
        await asyncio.gather(feed.task, return_exceptions=True)


def phase(word):
    return lambda pod: None if pod is None or pod.phase != word else pod


def turns(feed, word):
    feed.cluster.store.edit(KEY, lambda pod: pod["status"].update(phase=word))


async def seen(feed, word):
    async with asyncio.timeout(60):
        return await feed.until(phase(word))


async def test_the_first_state_is_known_without_a_request():
    async with following() as feed:
        await seen(feed, "Pending")
        assert feed.port.made("get") == []


async def test_a_change_is_seen_when_it_happens():
    async with following() as feed:
        await seen(feed, "Pending")
        turns(feed, "Running")
        assert (await seen(feed, "Running")).phase == "Running"
        assert feed.cluster.clock.monotonic() < 0.1


async def test_a_watch_that_ends_is_opened_where_it_ended():
    async with following() as feed:
        await asyncio.sleep(18)
        turns(feed, "Running")
        await seen(feed, "Running")
        assert (len(feed.port.made("watch")), feed.port.made("get")) == (4, [])


async def test_changes_between_two_watches_are_not_missed():
    async with following() as feed:
        await asyncio.sleep(1)
        feed.port.fail(calls("watch"), Unreachable("watch"), times=3)
        await asyncio.sleep(4.2)
        turns(feed, "Running")
        await seen(feed, "Running")
        assert feed.cluster.clock.monotonic() < 8


async def test_a_gap_whose_events_are_lost_is_closed_by_a_look():
    async with following() as feed:
        await asyncio.sleep(1)
        feed.port.before(calls("watch"), forgets(feed))
        feed.port.fail(calls("watch"), Gone("watch", status=410))
        await seen(feed, "Running")
        assert len(feed.port.made("get")) == 1


def forgets(feed):
    async def forget():
        turns(feed, "Running")
        feed.cluster.store.forget_history()

    return forget


async def test_a_successor_that_came_in_a_gap_is_not_taken_for_our_pod():
    async with following() as feed:
        await asyncio.sleep(1)

        async def succeeded():
            feed.cluster.store.remove(KEY)
            feed.cluster.store.create(KEY, POD)
            feed.cluster.store.forget_history()

        feed.port.before(calls("watch"), succeeded)
        await asyncio.wait_for(feed.task, 60)
        assert (feed.gone, feed.view) == (True, None)


async def test_trouble_that_lasts_makes_no_busy_loop():
    async with following(arrange=lambda port: port.fail(calls("watch"), Unreachable("watch"), times=9999)) as feed:
        await asyncio.sleep(60)
        assert 100 < len(feed.port.calls) < 130


async def test_a_refusal_ends_the_feed_with_its_reason():
    async with following(arrange=lambda port: port.fail(calls("watch"), Refused("watch", status=403))) as feed:
        with pytest.raises(Refused):
            await feed.task


@pytest.mark.parametrize("again", [False, True], ids=["gone", "replaced"])
async def test_a_pod_that_goes_is_told_also_when_another_has_its_name(again):
    async with following() as feed:
        await seen(feed, "Pending")
        feed.cluster.store.remove(KEY)
        if again:
            feed.cluster.store.create(KEY, POD)
        await asyncio.wait_for(feed.until(lambda pod: pod is None or None), 60)
        assert (feed.gone, feed.view) == (True, None)
        await asyncio.wait_for(feed.task, 60)


async def test_what_the_judge_raises_ends_the_wait():
    def judge(pod):
        raise LookupError(pod.phase)

    async with following() as feed:
        with pytest.raises(LookupError, match="Pending"):
            await feed.until(judge)
