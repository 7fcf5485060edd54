"""What a cluster does with objects."""

import asyncio

import pytest
from worlds import World, pod_of

from launcher.cluster.errors import AlreadyExists, Conflict, NotFound, Refused
from launcher.cluster.port import Json, Kind

pytestmark = pytest.mark.anyio

MAP = Kind.CONFIG_MAP


def config_map(name: str = "a", **metadata: object) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"key": "1"}}


async def test_an_absent_object_reads_as_none(world: World) -> None:
    assert await world.cluster.get(MAP, world.namespace, "absent") is None


async def test_a_created_object_reads_back_as_the_create_answered(world: World) -> None:
    created = await world.cluster.create(MAP, world.namespace, config_map())
    assert created["data"] == {"key": "1"}
    assert await world.cluster.get(MAP, world.namespace, "a") == created


async def test_a_created_object_has_uid_version_and_the_servers_time(world: World) -> None:
    metadata = (await world.cluster.create(MAP, world.namespace, config_map()))["metadata"]
    assert metadata["uid"]
    assert metadata["resourceVersion"]
    seconds = world.cluster.now().strftime("%Y-%m-%dT%H:%M")
    assert metadata["creationTimestamp"][:16] in (seconds, seconds[:-1] + str(int(seconds[-1]) - 1))


async def test_a_second_create_finds_the_first(world: World) -> None:
    await world.cluster.create(MAP, world.namespace, config_map())
    with pytest.raises(AlreadyExists):
        await world.cluster.create(MAP, world.namespace, config_map())


async def test_a_create_in_an_absent_namespace_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        await world.cluster.create(MAP, "there-is-no-such-namespace", config_map())


async def test_an_unknown_field_is_refused_by_name(world: World) -> None:
    with pytest.raises(Refused) as refused:
        await world.cluster.create(MAP, world.namespace, {**config_map(), "dota": {}})
    assert "dota" in refused.value.message
    assert await world.cluster.get(MAP, world.namespace, "a") is None


async def test_an_unknown_field_in_a_pod_spec_is_refused(world: World) -> None:
    pod = pod_of("p", world.image)
    pod["spec"]["hostNetwrok"] = True
    with pytest.raises(Refused, match="400"):
        await world.cluster.create(Kind.POD, world.namespace, pod)


async def test_a_bad_name_is_refused(world: World) -> None:
    with pytest.raises(Refused, match="422"):
        await world.cluster.create(MAP, world.namespace, config_map("Not_A_Name"))


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # it is large: that is the point
async def test_more_than_a_mebibyte_of_data_is_refused(world: World) -> None:
    with pytest.raises(Refused, match="422"):
        await world.cluster.create(MAP, world.namespace, {**config_map(), "data": {"key": "x" * 1_048_577}})


async def test_a_dry_run_answers_and_stores_nothing(world: World) -> None:
    answered = await world.cluster.create(MAP, world.namespace, config_map(), dry_run=True)
    assert answered["data"] == {"key": "1"}
    assert "resourceVersion" not in answered["metadata"]
    assert await world.cluster.get(MAP, world.namespace, "a") is None


async def test_a_dry_run_of_what_is_there_finds_it(world: World) -> None:
    await world.cluster.create(MAP, world.namespace, config_map())
    with pytest.raises(AlreadyExists):
        await world.cluster.create(MAP, world.namespace, config_map(), dry_run=True)


async def test_a_replace_under_the_read_version_is_stored(world: World) -> None:
    created = await world.cluster.create(MAP, world.namespace, config_map())
    replaced = await world.cluster.replace(MAP, world.namespace, "a", {**created, "data": {"key": "2"}})
    assert replaced["data"] == {"key": "2"}
    assert replaced["metadata"]["uid"] == created["metadata"]["uid"]
    assert replaced["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]


async def test_a_replace_under_an_older_version_conflicts_and_changes_nothing(world: World) -> None:
    created = await world.cluster.create(MAP, world.namespace, config_map())
    second = await world.cluster.replace(MAP, world.namespace, "a", {**created, "data": {"key": "2"}})
    with pytest.raises(Conflict):
        await world.cluster.replace(MAP, world.namespace, "a", {**created, "data": {"key": "3"}})
    assert await world.cluster.get(MAP, world.namespace, "a") == second


async def test_a_replace_of_what_is_absent_is_not_found(world: World) -> None:
    created = await world.cluster.create(MAP, world.namespace, config_map())
    await world.cluster.delete(MAP, world.namespace, "a")
    with pytest.raises((NotFound, Conflict)):
        await world.cluster.replace(MAP, world.namespace, "a", created)


async def test_of_many_that_replace_the_same_version_one_wins(world: World) -> None:
    created = await world.cluster.create(MAP, world.namespace, config_map())
    tries = [
        world.cluster.replace(MAP, world.namespace, "a", {**created, "data": {"key": str(number)}})
        for number in range(2, 10)
    ]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(answer, dict) for answer in answers) == 1
    assert sum(isinstance(answer, Conflict) for answer in answers) == len(tries) - 1


async def test_a_delete_says_whether_it_was_there(world: World) -> None:
    await world.cluster.create(MAP, world.namespace, config_map())
    assert await world.cluster.delete(MAP, world.namespace, "a") is True
    assert await world.cluster.delete(MAP, world.namespace, "a") is False


async def test_a_delete_for_another_uid_conflicts_and_deletes_nothing(world: World) -> None:
    created = await world.cluster.create(MAP, world.namespace, config_map())
    with pytest.raises(Conflict):
        await world.cluster.delete(MAP, world.namespace, "a", uid="00000000-0000-0000-0000-000000000000")
    assert await world.cluster.delete(MAP, world.namespace, "a", uid=created["metadata"]["uid"]) is True


async def test_a_secret_is_stored_in_base64(world: World) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "value"}}
    stored = await world.cluster.create(Kind.SECRET, world.namespace, secret)
    assert (stored["data"], stored["type"]) == ({"key": "dmFsdWU="}, "Opaque")


async def test_a_list_selects_by_labels_and_says_what_its_items_are(world: World) -> None:
    await world.cluster.create(MAP, world.namespace, config_map("a", labels={"of": "us"}))
    await world.cluster.create(MAP, world.namespace, config_map("b", labels={"of": "them"}))
    found = await world.cluster.list(MAP, world.namespace, labels={"of": "us"})
    assert [(item["kind"], item["metadata"]["name"]) for item in found] == [("ConfigMap", "a")]


async def test_a_list_selects_by_name(world: World) -> None:
    await world.cluster.create(MAP, world.namespace, config_map("a"))
    await world.cluster.create(MAP, world.namespace, config_map("b"))
    found = await world.cluster.list(MAP, world.namespace, fields={"metadata.name": "b"})
    assert [item["metadata"]["name"] for item in found] == ["b"]


async def test_dependants_go_with_their_owner(world: World) -> None:
    owner = await world.cluster.create(MAP, world.namespace, config_map("owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    await world.cluster.create(MAP, world.namespace, config_map("owned", ownerReferences=[reference]))
    async with asyncio.timeout(30), world.cluster.watch(MAP, world.namespace, "owned") as events:
        await world.cluster.delete(MAP, world.namespace, "owner")
        assert "DELETED" in [event.type async for event in _until_deleted(events)]


async def test_what_a_pod_owns_goes_only_after_the_pod(world: World) -> None:
    pod = await world.running("p")
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}
    await world.cluster.create(MAP, world.namespace, config_map("owned", ownerReferences=[reference]))
    async with asyncio.timeout(60), world.cluster.watch(MAP, world.namespace, "owned") as events:
        await world.cluster.delete(Kind.POD, world.namespace, "p", grace_seconds=2)
        assert await world.cluster.get(MAP, world.namespace, "owned") is not None
        async for _ in _until_deleted(events):
            pass
    assert await world.cluster.get(Kind.POD, world.namespace, "p") is None


async def test_a_pod_that_runs_is_deleted_gracefully(world: World) -> None:
    pod = await world.running("p")
    await world.cluster.delete(Kind.POD, world.namespace, "p", uid=pod["metadata"]["uid"], grace_seconds=4)
    told = await world.cluster.get(Kind.POD, world.namespace, "p")
    assert told is not None
    assert told["metadata"]["deletionGracePeriodSeconds"] == 4
    assert told["metadata"]["generation"] == pod["metadata"]["generation"] + 1


async def test_the_version_of_the_server_is_two_numbers(world: World) -> None:
    assert await world.cluster.server_version() >= (1, 29)


async def _until_deleted(events):
    async for event in events:
        yield event
        if event.type == "DELETED":
            return
