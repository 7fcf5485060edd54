"""An API server in trouble during a launch: answers are lost, requests refused, all of it goes away for a minute."""

import isolation_samples as samples
import pytest
from launch_world import NAME, execs, launching, refused, state, writes_phase

from launcher.cluster.errors import Conflict, ExecFailed, Gone, Throttled, Unreachable
from launcher.cluster.port import Kind
from launcher.testing.fake_script import Script
from launcher.testing.interceptor import Rule, calls
from launcher.testing.virtual_time import VirtualLoop
from records.model import Phase

pytestmark = pytest.mark.anyio

WITH_SECRET = samples.spec(command=["true"], capability="model")
REQUESTS = 17
"""Of a launch with a capability; see the test of what a launch costs."""

OUTAGE = 60.0


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


async def launched_once(it, replica, spec=WITH_SECRET):
    """Launch, and hold that there is exactly one of everything and that the worker runs."""
    await replica.launch(spec)
    record = await it.record()
    assert (len(it.pods_ever()), "running" in state(it.pod, "worker")) == (1, True)
    assert [len(it.items(kind)) for kind in (Kind.POD, Kind.NETWORK_POLICY, Kind.SECRET)] == [1, 1, 1]
    assert [entry.phase for entry in record.timeline] == ["provisioning", "releasing", "active"]
    assert (record.lease.epoch, record.pod.uid) == (1, it.pod["metadata"]["uid"])


WRITES = {
    "record": calls("create", Kind.CONFIG_MAP),
    "pod": calls("create", Kind.POD),
    "policy": calls("create", Kind.NETWORK_POLICY),
    "secret": calls("create", Kind.SECRET),
    "pod's name": lambda call: call.method == "replace" and '"pod":{' in call.body["data"]["record.json"],
    "release": writes_phase("releasing"),
    "start": writes_phase("active"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_write_whose_answer_is_lost_was_made_once(write):
    async with launching() as it:
        one = it.replica()
        rule = one.port.lose_answer(write)
        await launched_once(it, one)
    assert rule.seen > 0


TROUBLES = {
    "unreachable": lambda call: _open(call) or Unreachable(call.method, sent=False),
    "cut": lambda call: _open(call) or Unreachable(call.method, sent=True),
    "throttled": lambda call: Throttled(call.method, retry_after=1),
}


def _open(call):
    """What an exec raises that reaches nobody."""
    return ExecFailed("exec", reason="ClientConnectorError", started=False) if call.method == "exec" else None


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
@pytest.mark.parametrize("nth", range(1, REQUESTS + 1))
async def test_no_single_request_may_not_fail(nth, trouble):
    async with launching() as it:
        one = it.replica()
        one.port.rules.append(_Failing(nth, trouble))
        await launched_once(it, one)


class _Failing(Rule):
    """Fails the nth call of all, whatever it is, in its own words."""

    def __init__(self, nth, trouble):
        super().__init__(lambda _: True, nth=nth)
        self._trouble = trouble

    def applies(self, call):
        self.error = self._trouble(call)
        return super().applies(call)


@pytest.mark.parametrize("kind", [Kind.POD, Kind.NETWORK_POLICY, Kind.SECRET, Kind.CONFIG_MAP])
async def test_a_create_that_met_another_write_is_made_again(kind):
    async with launching() as it:
        one = it.replica()
        one.port.fail(calls("create", kind), Conflict("create", status=409, reason="Conflict"), times=2)
        await launched_once(it, one)


async def test_a_watch_whose_version_is_gone_begins_anew():
    async with launching() as it:
        one = it.replica()
        one.port.fail(calls("watch"), Gone("watch", status=410, reason="Expired"), times=3)
        await launched_once(it, one)


MOMENTS = WRITES | {
    "first look": calls("get", Kind.CONFIG_MAP, NAME),
    "witness": calls("get", Kind.SERVICE),
    "watch": calls("watch", Kind.POD, NAME),
    "following": execs("follow"),
    "seed": execs("receive"),
    "second attestation": calls("get", Kind.NETWORK_POLICY, NAME),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
async def test_an_api_server_that_is_away_for_a_minute_harms_no_launch(moment):
    async with launching() as it:
        one = it.replica()
        outage(it, one, moment)
        begun = it.cluster.clock.monotonic()
        await launched_once(it, one)
        assert it.cluster.clock.monotonic() - begun > OUTAGE


@pytest.mark.parametrize("moment", ["seed", "second attestation"])
async def test_an_outage_while_the_proof_is_not_yet_there_is_no_missing_proof(moment):
    async with launching(Script(enforced_after=4), bounds={"first_proof": 8}) as it:
        one = it.replica()
        outage(it, one, MOMENTS[moment])
        await one.launch(it.spec)
        assert it.started("worker")


async def test_an_outage_hides_no_proof_that_never_came():
    async with launching(Script(enforced=False), bounds={"first_proof": 8}) as it:
        one = it.replica()
        outage(it, one, MOMENTS["seed"])
        error = await refused(one.launch(it.spec))
        assert (error.code, it.started("worker")) == ("policy_not_enforced", False)


async def test_an_api_server_that_stays_away_is_told_as_such_and_the_gate_stays_closed():
    async with launching() as it:
        one = it.replica()
        outage(it, one, MOMENTS["second attestation"], seconds=10_000)
        error = await refused(one.launch(it.spec))
        assert (error.code, it.started("worker"), it.marked()) == ("cluster_unreachable", False, False)
        assert (await it.record()).phase is Phase.PROVISIONING


def outage(it, replica, moment, *, seconds=OUTAGE):
    """Let the API server go away at a request: that one fails, every stream breaks, and nobody is answered for long."""
    it.cluster.watch_seconds = 3.0
    replica.port.rules.append(_Away(it, moment, seconds))


class _Away(Rule):
    """Fails a moment's call and every other one for so many seconds."""

    def __init__(self, it, moment, seconds):
        super().__init__(self._away, times=1_000_000)
        self._it, self._moment, self._seconds = it, moment, seconds
        self._until = None

    def _away(self, call):
        now = self._it.cluster.clock.monotonic()
        if self._until is None and self._moment(call):
            self._until = now + self._seconds
            for stream in list(self._it.cluster.execs):
                stream.cut()
        self.error = TROUBLES["unreachable"](call)
        return self._until is not None and now < self._until
