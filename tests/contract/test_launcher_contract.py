"""What every launcher promises, held on the fake cluster and on a real one alike. One run serves what it can show."""

from collections.abc import AsyncIterator
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
from launchers import LEFT, OUTPUT, RESULT, World, fake_world, real_world

from launcher.contract import JobHandle
from launcher.errors import PodgateError
from launcher.testing.virtual_time import VirtualLoop

pytestmark = pytest.mark.anyio

ORDER = ["pending", "running", "succeeded", "failed", "stopped", "lost"]


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
def where(request):
    return request.param


@pytest.fixture
def anyio_backend(where):
    """Virtual time on the fake, real time on a real cluster."""
    return ("asyncio", {"loop_factory": VirtualLoop}) if where == "fake" else "asyncio"


@pytest.fixture
async def world(where, request, tmp_path: Path, anyio_backend) -> AsyncIterator[World]:
    if where == "fake":
        async with fake_world(tmp_path) as fake:
            yield fake
        return
    bed, options, kubeconfig = map(request.getfixturevalue, ("bed", "installed", "launcher_kubeconfig"))
    async with real_world(bed, options, kubeconfig, tmp_path) as real:
        yield real


async def refuses(code, awaitable):
    with pytest.raises(PodgateError) as caught:
        await awaitable
    assert caught.value.code == code


# --- before there is a run ---


async def test_a_planned_handle_is_the_launchs_own_and_costs_nothing(world: World):
    spec = world.spec("works")
    handle = world.launcher.planned_handle(spec)
    assert handle == world.other.planned_handle(dict(spec))
    assert (handle.backend, handle.id.split("/")[0]) == ("kubernetes", world.namespace)
    await refuses("job_not_found", world.launcher.status(handle))


@pytest.mark.parametrize("wrong", [{"runId": "../escape"}, {"image": "busybox:latest"}, {"cpus": 0}, {"color": "red"}])
async def test_an_invalid_spec_has_no_handle_and_is_not_launched(world: World, wrong):
    spec = world.spec("works") | wrong
    assert world.launcher.planned_handle(spec) is None
    await refuses("job_spec_invalid", world.launcher.launch(spec))


MALFORMED = {
    "backend": lambda handle: replace(handle, backend="docker"),
    "namespace": lambda handle: replace(handle, id="elsewhere/" + handle.id.partition("/")[2]),
    "no namespace": lambda handle: replace(handle, id=handle.id.partition("/")[2]),
    "extra part": lambda handle: replace(handle, id=handle.id + "/more"),
    "longer token": lambda handle: replace(handle, id=handle.id + "0"),
    "upper case": lambda handle: replace(handle, id=handle.id[:-1] + "A"),
    "empty": lambda handle: replace(handle, id=""),
}


@pytest.mark.parametrize("malform", MALFORMED.values(), ids=MALFORMED)
async def test_a_handle_that_cannot_be_ours_names_no_run(world: World, malform):
    handle = malform(world.launcher.planned_handle(world.spec("works")))
    one = world.launcher
    for ask in (one.status, one.collect, one.evidence, one.materialize_workspace):
        await refuses("job_not_found", ask(handle))
    await refuses("job_not_found", anext(one.logs(handle)))
    await one.stop(handle)
    await one.remove(handle)
    await refuses("job_not_found", one.status(handle))


async def test_an_unknown_run_is_not_found(world: World):
    handle = world.launcher.planned_handle(world.spec("works"))
    one = world.launcher
    for ask in (one.status, one.collect, one.evidence, one.materialize_workspace):
        await refuses("job_not_found", ask(handle))
    await refuses("job_not_found", anext(one.logs(handle)))


async def test_a_run_that_was_stopped_before_its_launch_never_starts(world: World):
    spec = world.spec("works")
    handle = world.launcher.planned_handle(spec)
    await world.launcher.stop(handle, "not wanted")
    assert await world.other.launch(spec) == handle
    assert (await world.launcher.status(handle)).state == "stopped"
    assert await world.pods_of(handle) == []
    await world.launcher.remove(handle)
    await refuses("job_removed", world.launcher.status(handle))


# --- launch ---


async def test_a_launch_may_be_repeated_and_makes_one_run(world: World):
    spec = world.spec("runs")
    handle = await world.launcher.launch(spec)
    (pod,) = await world.pods_of(handle)
    assert handle == world.launcher.planned_handle(spec)
    assert [await each.launch(dict(spec)) for each in (world.launcher, world.other)] == [handle, handle]
    await refuses("job_spec_conflict", world.other.launch(spec | {"timeoutSeconds": 121}))
    assert (await world.other.status(handle)).state == "running"
    assert [each["metadata"]["uid"] for each in await world.pods_of(handle)] == [pod["metadata"]["uid"]]
    await world.launcher.stop(handle)


# --- a run that succeeds ---


async def test_a_run_goes_from_pending_to_running_to_its_one_end(world: World):
    handle = await world.launcher.launch(world.spec("works"))
    states = [status.state for status in await world.ended(handle)]
    assert states == sorted(set(states), key=ORDER.index)
    assert states[-1] == "succeeded"
    await world.launcher.stop(handle)
    assert (await world.launcher.status(handle)).state == "succeeded"


async def test_what_a_run_left_can_be_had_until_it_is_removed(world: World):
    spec = world.spec("works")
    handle = await world.launcher.launch(spec)
    assert b"".join([piece async for piece in world.launcher.logs(handle, follow=True)]) == OUTPUT
    await world.ended(handle)

    collected = await world.launcher.collect(handle)
    assert (collected.state, collected.exit_code, collected.result) == ("succeeded", 0, RESULT)
    assert (collected.artifacts, collected.reason) == ("collected", "completed")
    assert await world.other.collect(handle) == collected
    assert b"".join([piece async for piece in world.other.logs(handle)]) == OUTPUT
    await _brought_back(world, handle, world.root / spec["runId"] / "workspace")

    await world.launcher.remove(handle)
    await _stays_removed(world, handle, spec, collected.evidence)


async def _brought_back(world: World, handle: JobHandle, home: Path):
    elsewhere = world.root / "elsewhere"
    for place, brought in (
        (home, await world.launcher.materialize_workspace(handle)),
        (elsewhere, await world.other.materialize_workspace(handle, elsewhere)),
    ):
        found = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        assert (brought.path, found) == (place, LEFT)


async def _stays_removed(world: World, handle: JobHandle, spec, evidence):
    await world.other.remove(handle)
    assert await world.other.launch(spec) == handle
    for ask in (world.other.status, world.other.collect, world.other.materialize_workspace):
        await refuses("job_removed", ask(handle))
    assert await world.pods_of(handle) == []
    assert await world.other.evidence(handle) == evidence
    assert (evidence["end"], evidence["gateExit"], bool(evidence["startId"])) == ("standing", 0, True)


# --- runs that end otherwise ---


async def test_an_active_run_is_neither_collected_nor_removed_and_stops_once(world: World):
    handle = await world.launcher.launch(world.spec("runs"))
    one = world.launcher
    for ask in (one.collect, one.remove, one.materialize_workspace):
        await refuses("job_not_terminal", ask(handle))
    assert (await one.status(handle)).state == "running"

    await one.stop(handle, "enough")
    await world.other.stop(handle, "again")
    stopped = await world.other.collect(handle)
    assert (stopped.state, stopped.exit_code, stopped.reason, stopped.message) == ("stopped", 143, "stopped", "enough")
    assert await one.collect(handle) == stopped
    await refuses("job_not_succeeded", one.materialize_workspace(handle))
    await one.remove(handle)
    await refuses("job_removed", world.other.status(handle))
    assert await world.pods_of(handle) == []


async def test_a_run_whose_pod_vanished_is_lost_and_can_be_collected(world: World):
    handle = await world.launcher.launch(world.spec("runs"))
    await world.vanish(handle)
    assert (await world.ended(handle))[-1].state == "lost"
    lost = await world.launcher.collect(handle)
    assert (lost.state, lost.exit_code, lost.retriable, lost.artifacts) == ("lost", 1, True, "expired")
    assert lost.evidence["end"] == "unknown"
    await world.launcher.remove(handle)
    await refuses("job_removed", world.launcher.collect(handle))


async def test_a_worker_that_fails_has_its_own_code_and_word(world: World):
    handle = await world.launcher.launch(world.spec("fails"))
    assert (await world.ended(handle))[-1].state == "failed"
    failed = await world.launcher.collect(handle)
    assert (failed.exit_code, failed.reason, failed.diagnostic) == (3, "worker_failed", "worker_tests_failed")
    assert await world.other.collect(handle) == failed
    await refuses("job_not_succeeded", world.other.materialize_workspace(handle))


# --- values ---


async def test_what_a_caller_does_to_its_values_reaches_no_other(world: World):
    handle = await world.launcher.launch(world.spec("works"))
    status, collected = (await world.ended(handle))[-1], await world.launcher.collect(handle)
    for value in (handle, status, collected):
        with pytest.raises(FrozenInstanceError):
            setattr(value, fields(value)[0].name, None)
    before = dict(collected.evidence)
    collected.evidence["end"], collected.result["answer"] = "forged", 43
    again = await world.launcher.collect(handle)
    assert (again.result, again.evidence) == (RESULT, before)
