"""What is repeated, how long, and what never is."""

import pytest

from launcher.cluster.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    ExecFailed,
    NotFound,
    Refused,
    Throttled,
    Unreachable,
)
from launcher.cluster.port import Json, Kind
from launcher.cluster.retrying import RetryingCluster, RetryPolicy
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.interceptor import Interceptor, calls

pytestmark = pytest.mark.anyio

MAP = Kind.CONFIG_MAP
AWAY = Unreachable("x", reason="refused", sent=False)
UNSURE = Unreachable("x", status=504)


class Setting:
    """A fake cluster behind an interceptor behind retries, with pauses that only count."""

    def __init__(self, **policy: float) -> None:
        self.at, self.pauses = 0.0, []
        self.inner = Interceptor(FakeCluster())
        self.cluster = RetryingCluster(
            self.inner,
            RetryPolicy(**policy),
            sleep=self._sleep,
            monotonic=lambda: self.at,
            uniform=lambda _, high: high,
        )

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.at += seconds

    async def made(self) -> Json:
        return await self.inner.port.create(MAP, "podgate", config_map())


def config_map(value: str = "1") -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"key": value}}


@pytest.mark.parametrize("error", [AWAY, UNSURE, Throttled("x")])
async def test_a_read_is_repeated(error: ClusterError) -> None:
    it = Setting()
    created = await it.made()
    it.inner.fail(calls("get"), error, times=3)
    assert await it.cluster.get(MAP, "podgate", "a") == created
    assert len(it.inner.made("get")) == 4


async def test_pauses_double_up_to_their_bound() -> None:
    it = Setting(first=0.2, longest=1.0)
    it.inner.fail(calls("get"), AWAY, times=5)
    await it.cluster.get(MAP, "podgate", "a")
    assert it.pauses == [0.2, 0.4, 0.8, 1.0, 1.0]


async def test_a_server_that_is_away_for_a_minute_fails_nothing() -> None:
    it = Setting()
    it.inner.before(calls("get"), lambda: _away_until(it, 60.0))
    it.inner.rules[-1].times = 10_000
    assert await it.cluster.get(MAP, "podgate", "a") is None
    assert it.at >= 60


async def _away_until(it: Setting, seconds: float) -> None:
    if it.at < seconds:
        raise AWAY


async def test_the_budget_ends_it_with_the_last_error() -> None:
    it = Setting(budget=10)
    it.inner.fail(calls("get"), AWAY, times=10_000)
    with pytest.raises(Unreachable):
        await it.cluster.get(MAP, "podgate", "a")
    assert it.at <= 10


async def test_the_servers_wish_to_wait_is_heeded() -> None:
    it = Setting()
    it.inner.fail(calls("get"), Throttled("x", retry_after=7))
    await it.cluster.get(MAP, "podgate", "a")
    assert it.pauses == [7.2]


async def test_a_wish_beyond_the_budget_is_not_waited_for() -> None:
    it = Setting(budget=10)
    it.inner.fail(calls("get"), Throttled("x", retry_after=60))
    with pytest.raises(Throttled):
        await it.cluster.get(MAP, "podgate", "a")
    assert it.pauses == []


@pytest.mark.parametrize("error", [Refused("x"), NotFound("x"), Conflict("x")])
async def test_a_read_that_was_answered_is_not_repeated(error: ClusterError) -> None:
    it = Setting()
    it.inner.fail(calls("get"), error)
    with pytest.raises(type(error)):
        await it.cluster.get(MAP, "podgate", "a")
    assert len(it.inner.made("get")) == 1


async def test_a_create_that_lost_a_quotas_race_is_repeated() -> None:
    it = Setting()
    it.inner.fail(calls("create"), Conflict("x"), times=2)
    assert (await it.cluster.create(MAP, "podgate", config_map()))["metadata"]["name"] == "a"


async def test_a_create_whose_answer_was_lost_finds_its_own_object_and_says_so() -> None:
    it = Setting()
    it.inner.lose_answer(calls("create"))
    with pytest.raises(AlreadyExists):
        await it.cluster.create(MAP, "podgate", config_map())
    assert await it.cluster.get(MAP, "podgate", "a") is not None


async def test_a_refused_create_is_not_repeated() -> None:
    it = Setting()
    it.inner.fail(calls("create"), Refused("x", status=403, quota=True))
    with pytest.raises(Refused):
        await it.cluster.create(MAP, "podgate", config_map())
    assert len(it.inner.made("create")) == 1


async def test_a_replace_whose_answer_was_lost_is_never_repeated() -> None:
    it = Setting()
    created = await it.made()
    it.inner.lose_answer(calls("replace"))
    with pytest.raises(Unreachable):
        await it.cluster.replace(MAP, "podgate", "a", {**created, "data": {"key": "2"}})
    assert len(it.inner.made("replace")) == 1


@pytest.mark.parametrize("error", [AWAY, Throttled("x")])
async def test_a_replace_that_reached_nobody_is_repeated(error: ClusterError) -> None:
    it = Setting()
    created = await it.made()
    it.inner.fail(calls("replace"), error)
    assert (await it.cluster.replace(MAP, "podgate", "a", {**created, "data": {"key": "2"}}))["data"] == {"key": "2"}


async def test_a_replace_that_conflicts_is_the_callers_to_decide() -> None:
    it = Setting()
    created = await it.made()
    it.inner.fail(calls("replace"), Conflict("x"))
    with pytest.raises(Conflict):
        await it.cluster.replace(MAP, "podgate", "a", created)


async def test_a_delete_whose_answer_was_lost_counts_as_done() -> None:
    it = Setting()
    uid = (await it.made())["metadata"]["uid"]
    it.inner.lose_answer(calls("delete"))
    assert await it.cluster.delete(MAP, "podgate", "a", uid=uid) is True


async def test_a_delete_that_reached_nobody_and_found_nothing_says_so() -> None:
    it = Setting()
    it.inner.fail(calls("delete"), AWAY)
    assert await it.cluster.delete(MAP, "podgate", "a", uid="any") is False


async def test_a_delete_without_a_uid_is_not_repeated_when_it_may_have_been_done() -> None:
    it = Setting()
    await it.made()
    it.inner.lose_answer(calls("delete"))
    with pytest.raises(Unreachable):
        await it.cluster.delete(MAP, "podgate", "a")
    assert len(it.inner.made("delete")) == 1


async def test_opening_a_watch_is_repeated() -> None:
    it = Setting()
    await it.made()
    it.inner.fail(calls("watch"), UNSURE, times=2)
    async with it.cluster.watch(MAP, "podgate", "a") as events:
        assert (await anext(events)).type == "ADDED"


async def test_a_watch_that_breaks_while_it_is_read_is_not_repeated() -> None:
    it = Setting()
    with pytest.raises(Unreachable):
        async with it.cluster.watch(MAP, "podgate", "a"):
            raise UNSURE
    assert len(it.inner.made("watch")) == 1


async def test_an_exec_is_never_repeated() -> None:
    it = Setting()
    it.inner.fail(calls("exec"), ExecFailed("x", started=False))
    with pytest.raises(ExecFailed):
        async with it.cluster.exec("podgate", "p", "c", ["true"]):
            pass
    assert it.pauses == []


async def test_lists_and_the_version_are_repeated() -> None:
    it = Setting()
    it.inner.fail(calls("list"), UNSURE)
    it.inner.fail(calls("version"), UNSURE)
    assert await it.cluster.list(MAP, "podgate") == []
    assert await it.cluster.server_version() == (1, 34)
