"""What a watch of one object shows."""

import asyncio

import pytest
from worlds import World

from launcher.cluster.errors import Gone
from launcher.cluster.port import Json, Kind

pytestmark = pytest.mark.anyio

MAP = Kind.CONFIG_MAP


def config_map(name: str, value: str = "1") -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": value}}


async def collected(events, count: int) -> list[tuple[str, str | None]]:
    found = []
    async with asyncio.timeout(30):
        async for event in events:
            if event.type != "BOOKMARK":
                found.append((event.type, event.object.get("data", {}).get("key")))
            if len(found) == count:
                break
    return found


async def test_a_watch_shows_the_present_object_then_each_change(world: World) -> None:
    created = await world.cluster.create(MAP, world.namespace, config_map("a"))
    async with world.cluster.watch(MAP, world.namespace, "a") as events:
        await world.cluster.replace(MAP, world.namespace, "a", {**created, "data": {"key": "2"}})
        await world.cluster.delete(MAP, world.namespace, "a")
        assert await collected(events, 3) == [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]


async def test_a_watch_of_an_absent_object_waits_for_it(world: World) -> None:
    async with world.cluster.watch(MAP, world.namespace, "a") as events:
        await world.cluster.create(MAP, world.namespace, config_map("b"))
        await world.cluster.create(MAP, world.namespace, config_map("a"))
        assert await collected(events, 1) == [("ADDED", "1")]


async def test_a_watch_from_a_version_shows_what_came_after(world: World) -> None:
    created = await world.cluster.create(MAP, world.namespace, config_map("a"))
    second = await world.cluster.replace(MAP, world.namespace, "a", {**created, "data": {"key": "2"}})
    await world.cluster.replace(MAP, world.namespace, "a", {**second, "data": {"key": "3"}})
    version = created["metadata"]["resourceVersion"]
    async with world.cluster.watch(MAP, world.namespace, "a", resource_version=version) as events:
        assert await collected(events, 2) == [("MODIFIED", "2"), ("MODIFIED", "3")]


async def test_a_watch_keeps_long_objects_and_any_character_whole(world: World) -> None:
    text = "ä€😀" * 30_000
    await world.cluster.create(MAP, world.namespace, config_map("a", text))
    async with world.cluster.watch(MAP, world.namespace, "a") as events:
        assert await collected(events, 1) == [("ADDED", text)]


async def test_a_watch_from_a_version_that_is_forgotten_is_gone(world: World) -> None:
    with pytest.raises(Gone):
        await _watch_from_long_ago(world)


async def _watch_from_long_ago(world: World) -> None:
    forget = getattr(getattr(world.cluster, "store", None), "forget_history", None)
    if forget is not None:
        await world.cluster.create(MAP, world.namespace, config_map("a"))
        forget()
    async with asyncio.timeout(30), world.cluster.watch(MAP, world.namespace, "a", resource_version="1") as events:
        async for _ in events:
            pass
