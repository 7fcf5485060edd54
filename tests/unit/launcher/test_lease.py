"""The lease on a launch: renewed while it lasts, suspended by an outage, and given up to whoever has a higher epoch."""

import asyncio
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest
from launch_world import NAME, TOKEN, launching, refused

from launcher.cluster.errors import Refused, Unreachable
from launcher.cluster.port import Kind
from launcher.context import Context
from launcher.lease import LEAST_LEFT, Lease
from launcher.recordport import record_store
from launcher.testing.interceptor import Interceptor, calls
from launcher.testing.virtual_time import VirtualLoop
from records.birth import opened
from records.model import Evidence, Phase, PodRef, Result
from records.transitions import Ended, LeaseTaken, PodNamed, ReleaseBegun, StopRequested, WorkerStarted

pytestmark = pytest.mark.anyio

POD = PodRef(uid="pod-1", name=NAME)


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


class Holding:
    """A launch under epoch 1, whose requests go over ``port``; ``it.store`` is everybody else's."""

    def __init__(self, it):
        self.it, self.cluster, self.store = it, it.cluster, it.store
        self.port = Interceptor(it.cluster)

    async def begin(self):
        now, clock = self.cluster.now(), self.cluster.clock
        stored = await self.store.create(
            opened(
                token=TOKEN,
                run_id="run-1",
                spec_hash="spec",
                manifest_digest="m",
                holder="ours",
                now=now,
                lease_until=now + timedelta(seconds=30),
                provision_by=now + timedelta(seconds=300),
                disk_mb=64,
                timeout_seconds=60,
            )
        )
        store = record_store(self.port, self.it.settings.isolation.namespace, sleep=clock.sleep)
        context = Context(self.port, store, self.it.settings, "ours", clock.monotonic, clock.sleep)
        self.lease = Lease(context, stored)
        return self

    async def says(self, event):
        await self.store.update(TOKEN, lambda _: event)

    async def is_taken(self):
        far = self.cluster.now() + timedelta(seconds=300)
        await self.says(LeaseTaken("another", expires_at=far, now=far))

    async def left(self):
        """Seconds until the recorded lease expires."""
        return ((await self.it.record()).lease.expires_at - self.cluster.now()).total_seconds()


@asynccontextmanager
async def holding():
    async with launching(preflight=False) as it:
        yield await Holding(it).begin()


@asynccontextmanager
async def kept(it):
    """The lease is being kept meanwhile."""
    task = asyncio.create_task(it.lease.keep())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def test_it_is_renewed_long_before_it_expires():
    async with holding() as it, kept(it):
        for _ in range(20):
            await asyncio.sleep(7)
            assert await it.left() > 15
        assert len(it.port.made("replace")) == 14


async def test_renewing_costs_one_request():
    async with holding() as it, kept(it):
        await asyncio.sleep(35)
        assert [call.method for call in it.port.calls] == ["replace"] * 3


async def test_an_outage_suspends_renewing_and_cancels_nothing():
    async with holding() as it, kept(it) as keeping:
        it.port.fail(lambda _: True, Unreachable("replace"), times=40)
        await asyncio.sleep(60)
        assert (keeping.done(), await it.left() < 0) == (False, True)
        it.port.rules.clear()
        await asyncio.sleep(15)
        assert (await it.left() > 15, (await it.it.record()).lease.epoch) == (True, 1)


async def test_keeping_ends_quietly_once_the_worker_was_seen_started():
    async with holding() as it, kept(it) as keeping:
        now = it.cluster.now()
        await it.says(ReleaseBegun(1, POD, Evidence(), now))
        await it.says(WorkerStarted(now, now, now, now, {}))
        await asyncio.sleep(25)
        assert (keeping.done(), keeping.exception()) == (True, None)


LOSSES = {
    "taken over": (lambda it: it.is_taken(), "another replica"),
    "stopped": (lambda it: it.says(StopRequested(it.cluster.now())), "a stop was requested"),
    "ended": (
        lambda it: it.says(Ended(Phase.FAILED, Result(exit_code=1, reason="x"), it.cluster.now())),
        "the run is failed already",
    ),
    "gone": (lambda it: it.cluster.delete(Kind.CONFIG_MAP, it.it.settings.isolation.namespace, NAME), "is gone"),
}


@pytest.mark.parametrize(("loss", "why"), LOSSES.values(), ids=LOSSES)
async def test_keeping_says_when_the_launch_is_not_ours_any_more(loss, why):
    async with holding() as it, kept(it) as keeping:
        await loss(it)
        error = await refused(asyncio.wait_for(keeping, 11))
    assert (error.code, why in error.message) == ("launch_superseded", True)


WRITES = {
    "pod": lambda _: PodNamed(1, POD),
    "release": lambda record: ReleaseBegun(1, POD, Evidence(), record.created_at),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(("loss", "why"), LOSSES.values(), ids=LOSSES)
async def test_nothing_is_written_to_a_record_that_is_not_ours_any_more(loss, why, write):
    async with holding() as it:
        await loss(it)
        before = await it.it.record()
        error = await refused(it.lease.write(write))
        assert (error.code, why in error.message, await it.it.record()) == ("launch_superseded", True, before)


async def test_a_write_whose_answer_was_lost_is_found_to_be_there():
    async with holding() as it:
        it.port.lose_answer(calls("replace"))
        await it.lease.write(WRITES["pod"])
        assert it.lease.record == await it.it.record()
        assert it.lease.record.pod == POD


async def test_writes_of_one_launch_do_not_meet():
    async with holding() as it:
        renew = it.lease._renewed
        await asyncio.sleep(1)
        await asyncio.gather(*(it.lease.write(each) for each in (renew, WRITES["pod"], WRITES["release"])))
        assert [call.method for call in it.port.calls] == ["replace"] * 3


async def test_holding_costs_nothing_while_enough_is_left():
    async with holding() as it:
        await asyncio.sleep(30 - LEAST_LEFT.total_seconds() - 1)
        await it.lease.hold()
        assert it.port.calls == []


@pytest.mark.parametrize("seconds", [28, 31, 200])
async def test_holding_renews_what_is_about_to_expire_or_has(seconds):
    async with holding() as it:
        await asyncio.sleep(seconds)
        await it.lease.hold()
        assert await it.left() == pytest.approx(30, abs=1)


async def test_holding_waits_for_an_api_server_that_is_away():
    async with holding() as it:
        await asyncio.sleep(31)
        it.port.fail(lambda _: True, Unreachable("replace"), times=40)
        await it.lease.hold()
        assert await it.left() > 0


async def test_a_lease_that_expired_and_was_taken_is_not_held():
    async with holding() as it:
        await asyncio.sleep(31)
        await it.is_taken()
        error = await refused(it.lease.hold())
    assert error.code == "launch_superseded"


async def test_missing_rights_are_no_outage():
    async with holding() as it:
        it.port.fail(calls("replace"), Refused("replace", status=403))
        with pytest.raises(Refused):
            await it.lease.write(WRITES["pod"])


async def test_a_record_without_a_lease_cannot_be_held():
    async with holding() as it:
        stored = await it.store.read(TOKEN)
        bare = type(stored)(stored.record.evolve(lease=None), stored.uid, stored.resource_version)
        with pytest.raises(ValueError, match="without a lease"):
            Lease(it.lease._context, bare)
