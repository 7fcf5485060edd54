"""Exactly the call that was meant goes wrong, and nothing else."""

import asyncio

import pytest

from launcher.cluster.errors import ExecFailed, Refused, Unreachable
from launcher.cluster.port import Json, Kind
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.interceptor import Interceptor, calls

pytestmark = pytest.mark.anyio

MAP = Kind.CONFIG_MAP


def config_map(name: str) -> Json:
    return {"metadata": {"name": name}, "data": {}}


@pytest.fixture
def it() -> Interceptor:
    return Interceptor(FakeCluster())


async def test_the_third_create_of_a_kind_fails_and_only_that(it: Interceptor) -> None:
    it.fail(calls("create", MAP), Refused("x"), nth=3)
    for name in ("a", "b"):
        await it.create(MAP, "podgate", config_map(name))
    with pytest.raises(Refused):
        await it.create(MAP, "podgate", config_map("c"))
    await it.create(MAP, "podgate", config_map("d"))
    assert [one["metadata"]["name"] for one in await it.list(MAP, "podgate")] == ["a", "b", "d"]


async def test_a_lost_answer_was_carried_out(it: Interceptor) -> None:
    it.lose_answer(calls("create", name="a"))
    with pytest.raises(Unreachable):
        await it.create(MAP, "podgate", config_map("a"))
    assert await it.get(MAP, "podgate", "a") is not None


async def test_another_replica_may_move_just_before(it: Interceptor) -> None:
    it.before(calls("get"), lambda: _create(it, "a"))
    assert await it.get(MAP, "podgate", "a") is not None


async def test_a_delay_is_the_clocks(it: Interceptor) -> None:
    it.before(calls("get"), lambda: asyncio.sleep(3600))
    before = asyncio.get_running_loop().time()
    await it.get(MAP, "podgate", "a")
    assert asyncio.get_running_loop().time() - before == 3600


async def test_an_exec_whose_answer_was_lost_may_have_started(it: Interceptor) -> None:
    it.lose_answer(calls("exec"))
    with pytest.raises(ExecFailed) as error:
        async with it.exec("podgate", "p", "c", ["true"]):
            pass
    assert error.value.started


async def test_all_calls_are_remembered(it: Interceptor) -> None:
    await it.create(MAP, "podgate", config_map("a"), dry_run=True)
    await it.delete(MAP, "podgate", "a", uid="u")
    assert [(call.method, call.name) for call in it.calls] == [("dry-run", "a"), ("delete", "a")]


async def _create(it: Interceptor, name: str) -> None:
    await it.port.create(MAP, "podgate", config_map(name))
