"""Making an object so: created, or found to be ours, or refused; quotas are waited for."""

from datetime import timedelta

import pytest
from launch_world import NAME, NAMESPACE, launching

from isolation import labels
from launcher.cluster.errors import Refused, Throttled
from launcher.cluster.port import Kind
from launcher.context import Context
from launcher.errors import PodgateError
from launcher.objects import QUOTA_PAUSE_LONGEST, ensure, ensure_secret
from launcher.testing.interceptor import Interceptor, calls
from launcher.testing.virtual_time import VirtualLoop

pytestmark = pytest.mark.anyio

QUOTA = Refused("create", status=403, reason="Forbidden", message="exceeded quota", quota=True)


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


def policy(*, run="run-1", owner="pod-1"):
    metadata = {"name": NAME, "annotations": {labels.RUN_ID: run}, "ownerReferences": [{"uid": owner}]}
    return {"kind": "NetworkPolicy", "metadata": metadata, "spec": {"podSelector": {}}}


def secret():
    return {"kind": "Secret", "metadata": {"name": "s"}, "data": {"key": "dmFsdWU="}}


class Made:
    """A context over a fake cluster whose calls can be broken, and a bound a minute away."""

    def __init__(self, it):
        self.cluster = it.cluster
        self.port = Interceptor(it.cluster)
        clock = it.cluster.clock
        self.context = Context(self.port, it.store, it.settings, "r", clock.monotonic, clock.sleep)
        self.until = it.cluster.now() + timedelta(seconds=60)

    async def ensure(self, body, kind=Kind.NETWORK_POLICY):
        return await ensure(self.context, kind, body, until=self.until)


async def test_what_is_missing_is_created_and_returned_as_stored():
    async with launching(preflight=False) as it:
        stored = await Made(it).ensure(policy())
    assert stored["metadata"]["uid"]


async def test_what_is_ours_already_is_returned_as_it_is():
    async with launching(preflight=False) as it:
        made = Made(it)
        first = await made.ensure(policy())
        assert await made.ensure(policy()) == first


@pytest.mark.parametrize(("theirs", "what"), [({"run": "run-2"}, "run"), ({"owner": "pod-2"}, "owner")])
async def test_what_belongs_to_another_is_refused_and_left(theirs, what):
    async with launching(preflight=False) as it:
        made = Made(it)
        there = await made.ensure(policy(**theirs))
        with pytest.raises(PodgateError, match=f"has another {what}") as caught:
            await made.ensure(policy())
        assert (caught.value.code, it.items(Kind.NETWORK_POLICY)) == ("foreign_object", [there])


async def test_an_object_without_annotations_is_no_crash():
    async with launching(preflight=False) as it:
        await it.cluster.create(Kind.NETWORK_POLICY, NAMESPACE, {"metadata": {"name": NAME}, "spec": {}})
        with pytest.raises(PodgateError, match="foreign_object"):
            await Made(it).ensure(policy())


async def test_an_object_that_goes_between_two_calls_is_made_again():
    async with launching(preflight=False) as it:
        made = Made(it)
        await made.ensure(policy(run="run-2"))
        gone = (Kind.NETWORK_POLICY, NAMESPACE, NAME)

        async def goes():
            it.cluster.store.remove(gone)

        made.port.before(calls("get"), goes)
        await made.ensure(policy())
        assert [call.method for call in made.port.calls[1:]] == ["create", "get", "create"]


async def test_a_quota_is_waited_for_with_growing_pauses_until_the_bound():
    async with launching(preflight=False) as it:
        made = Made(it)
        made.port.fail(calls("create"), QUOTA, times=999)
        with pytest.raises(PodgateError) as caught:
            await made.ensure(policy())
        assert (caught.value.code, it.cluster.clock.monotonic()) == ("quota_exhausted", pytest.approx(60, abs=0.1))
        assert 60 / QUOTA_PAUSE_LONGEST < len(made.port.calls) < 30


async def test_a_quota_that_comes_free_is_used():
    async with launching(preflight=False) as it:
        made = Made(it)
        made.port.fail(calls("create"), QUOTA, times=3)
        assert (await made.ensure(policy()))["metadata"]["name"] == NAME


@pytest.mark.parametrize("error", [Refused("create", status=403), Throttled("create")])
async def test_other_refusals_pass_as_they_are(error):
    async with launching(preflight=False) as it:
        made = Made(it)
        made.port.fail(calls("create"), error)
        with pytest.raises(type(error)):
            await made.ensure(policy())


async def test_a_secret_is_never_read():
    async with launching(preflight=False) as it:
        made = Made(it)
        await ensure_secret(made.context, secret(), until=made.until)
        await ensure_secret(made.context, secret(), until=made.until)
        assert [call.method for call in made.port.calls] == ["create", "create"]
