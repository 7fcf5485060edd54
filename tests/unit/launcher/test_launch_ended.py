"""Launches that somebody ends: by a stop from another replica, or by cancelling the task that awaits them."""

import asyncio

import isolation_samples as samples
import pytest
from launch_world import NAME, execs, launching, refused, state, writes_phase

from launcher.cluster.port import Kind
from launcher.launch import CLEAN_UP_SECONDS
from launcher.testing.fake_script import Script
from launcher.testing.interceptor import Rule, calls
from launcher.testing.virtual_time import VirtualLoop
from records.model import Phase

pytestmark = pytest.mark.anyio

WITH_SECRET = samples.spec(command=["true"], capability="model")

MOMENTS = {
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
"""From the record on: each request of a launch before its marker."""


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


# --- stop ---


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
async def test_a_stop_at_any_moment_ends_the_launch_and_the_run_is_stopped(moment):
    async with launching() as it:
        one, other = it.replica(), it.replica("replica-b").launcher
        one.port.before(moment, lambda: other.stop(other.planned_handle(WITH_SECRET), "not wanted"))
        error = await refused(one.launch(WITH_SECRET))
        await it.drained()
        record = await it.record()
    assert error.code == "launch_superseded"
    assert (record.phase, record.result.exit_code, record.result.message) == (Phase.STOPPED, 143, "not wanted")
    assert (it.started("worker"), it.marked()) == (False, False)
    assert Phase.RELEASING not in [entry.phase for entry in record.timeline]


async def test_a_stop_while_the_gate_thinks_about_the_marker_ends_the_launch():
    async with launching(Script(gate_hangs=True)) as it:
        launch = asyncio.create_task(it.replica().launch(it.spec))
        await it.until(lambda: it.pod is not None and it.marked(), 60)
        other = it.replica("replica-b").launcher
        await other.stop(other.planned_handle(it.spec))
        error = await refused(launch)
        await it.drained()
        assert (error.code, (await it.record()).phase) == ("launch_superseded", Phase.STOPPED)
        assert not it.started("worker")


async def test_a_stop_while_the_workers_image_is_pulled_ends_the_launch():
    async with launching(Script(worker_starts_after=100)) as it:
        launch = asyncio.create_task(it.replica().launch(it.spec))
        await it.until(lambda: it.pod is not None and "terminated" in state(it.pod, "gate"), 60)
        other = it.replica("replica-b").launcher
        await other.stop(other.planned_handle(it.spec))
        error = await refused(launch)
        await it.drained()
        assert (error.code, (await it.record()).phase) == ("launch_superseded", Phase.STOPPED)


async def test_a_stop_before_the_record_is_made_wins():
    async with launching() as it:
        one, other = it.replica(), it.replica("replica-b").launcher
        one.port.before(calls("create", Kind.CONFIG_MAP, NAME), lambda: other.stop(other.planned_handle(it.spec)))
        await one.launch(it.spec)
        assert ((await it.record()).phase, it.pods_ever()) == (Phase.STOPPED, [])


async def test_a_stopped_run_may_be_removed_and_stays_what_it_was():
    async with launching() as it:
        one, other = it.replica(), it.replica("replica-b").launcher
        handle = other.planned_handle(it.spec)
        one.port.before(MOMENTS["seed"], lambda: other.stop(handle))
        await refused(one.launch(it.spec))
        await other.remove(handle)
        assert (await other.record(handle)).phase is Phase.REMOVED


# --- cancellation ---


async def cancelled(it, one, moment, *, then=None):
    """Cancel a launch at a request of its own, and return how many seconds its end took. ``then``: what goes wrong."""
    task = asyncio.create_task(one.launch(WITH_SECRET))
    at = None

    async def cancel():
        nonlocal at
        at = it.cluster.clock.monotonic()
        task.cancel()
        one.port.rules.extend([then] if then else [])
        await asyncio.Event().wait()

    one.port.before(moment, cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    return it.cluster.clock.monotonic() - at


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
async def test_a_cancelled_launch_is_recorded_as_such_before_its_pod_goes(moment):
    async with launching() as it:
        took = await cancelled(it, it.replica(), moment)
        record = await it.record()
        await it.drained()
    assert (record.phase, record.result.reason, record.result.exit_code) == (Phase.FAILED, "launch_cancelled", 125)
    assert not it.pods_ever() or it.recorded_at("failed") < it.deleted_at()
    assert took < 1
    assert (it.started("worker"), it.marked()) == (False, False)


async def test_a_launch_that_is_cancelled_after_its_marker_is_ended_all_the_same():
    async with launching(Script(worker_starts_after=100)) as it:
        task = asyncio.create_task(it.replica().launch(it.spec))
        await it.until(lambda: it.pod is not None and "terminated" in state(it.pod, "gate"), 60)
        task.cancel()
        await asyncio.wait({task})
        await it.drained()
        assert ((await it.record()).result.reason, it.started("worker")) == ("launch_cancelled", False)


@pytest.mark.parametrize("moment", ["pod", "seed", "release"])
async def test_a_cancelled_launch_ends_in_time_also_when_nobody_answers(moment):
    async with launching() as it:
        silence = Rule(lambda _: True, times=999, before=_for_ever)
        took = await cancelled(it, it.replica(), MOMENTS[moment], then=silence)
    assert took == pytest.approx(CLEAN_UP_SECONDS, abs=1)


async def test_a_second_cancellation_ends_the_cleaning_up_too():
    async with launching() as it:
        one = it.replica()
        task = asyncio.create_task(one.launch(it.spec))
        await it.until(lambda: it.pod is not None, 60)
        one.port.rules.append(Rule(lambda _: True, times=999, before=_for_ever))
        task.cancel()
        await asyncio.sleep(1)
        running = asyncio.all_tasks()
        task.cancel()
        await asyncio.wait({task}, timeout=1)
        left = {each for each in asyncio.all_tasks() & running if "_failed" in repr(each)}
        assert (task.cancelled(), left) == (True, set())


async def test_a_launch_that_waits_for_its_turn_is_cancelled_without_a_trace():
    async with launching(bounds={"concurrent_launches": 1}) as it:
        one = it.replica()
        first = asyncio.create_task(one.launch(samples.spec(runId="run-2", command=["true"])))
        await asyncio.sleep(0.5)
        task = asyncio.create_task(one.launch(it.spec))
        await asyncio.sleep(0.5)
        task.cancel()
        await first
        assert (task.cancelled(), await it.record(), it.pods_ever()) == (True, None, [])


async def test_a_launch_under_a_callers_own_timeout_leaves_nothing():
    async with launching(Script(unschedulable=True)) as it:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20):
                await it.replica().launch(it.spec)
        await it.drained()
        assert (await it.record()).result.reason == "launch_cancelled"


async def _for_ever():
    await asyncio.Event().wait()
