"""The steps between record and released worker: their order, what overlaps, and what each waits for."""

import asyncio

import isolation_samples as samples
import pytest
from launch_world import NAME, execs, launching, refused, writes_phase

from launcher.cluster.port import Kind
from launcher.decide.proof import LastRound, ProverState
from launcher.provision import rounds_of
from launcher.testing.fake_script import Script
from launcher.testing.interceptor import calls
from launcher.testing.virtual_time import VirtualLoop

pytestmark = pytest.mark.anyio

WITH_SECRET = samples.spec(command=["true"], capability="model")


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


def position(made, matches):
    """Index of the first call that matches."""
    return next(at for at, call in enumerate(made) if matches(call))


async def test_pod_before_policy_and_secret_and_both_before_the_seed():
    async with launching() as it:
        one = it.replica()
        await one.launch(WITH_SECRET)
    order = [
        position(one.port.calls, matches)
        for matches in (calls("create", Kind.CONFIG_MAP), calls("create", Kind.POD), calls("create", Kind.SECRET))
    ]
    assert order == sorted(order)
    seeded = position(one.port.calls, execs("receive"))
    assert max(order[-1], position(one.port.calls, calls("create", Kind.NETWORK_POLICY))) < seeded


async def test_policy_and_secret_do_not_wait_for_one_another():
    async with launching() as it:
        one = it.replica()

        async def slow():
            await asyncio.sleep(3)

        for kind in (Kind.NETWORK_POLICY, Kind.SECRET):
            one.port.before(calls("create", kind), slow)
        one.port.before(calls("replace", Kind.CONFIG_MAP), slow)
        begun = it.cluster.clock.monotonic()
        await one.launch(WITH_SECRET)
        assert it.cluster.clock.monotonic() - begun < 9


@pytest.mark.parametrize(("proof", "seed"), [(2, 20), (20, 0)])
async def test_seed_and_proof_overlap_and_the_release_waits_for_both(proof, seed):
    async with launching(Script(enforced_after=proof)) as it:
        one = it.replica()

        async def slow():
            await asyncio.sleep(seed)

        one.port.before(execs("receive"), slow)
        await one.launch(it.spec)
        at = {event.stage: event.at_seconds for event in one.told}
    assert at["proven"] == pytest.approx(proof + 1.5, abs=1)
    assert at["seeded"] == pytest.approx(seed + 0.5, abs=1)
    assert at["released"] - max(at["proven"], at["seeded"]) < 1


async def test_nothing_is_sent_into_a_pod_that_is_not_the_attested_one():
    def admit(verb, kind, body):
        if kind is Kind.POD and body["metadata"]["name"] == NAME:
            body["metadata"]["labels"]["team"] = "x"
        return body

    async with launching() as it:
        it.cluster.admission.append(admit)
        one = it.replica()
        await refused(one.launch(WITH_SECRET))
    assert [call for call in one.port.calls if call.method in ("exec", "watch")] == []


async def test_the_second_attestation_comes_after_seed_and_proof_and_right_before_the_release():
    async with launching() as it:
        one = it.replica()
        await one.launch(it.spec)
    reads = position(one.port.calls, calls("get", Kind.NETWORK_POLICY))
    assert position(one.port.calls, execs("receive")) < reads
    assert position(one.port.calls, writes_phase("releasing")) == reads + 1


async def test_a_node_that_makes_no_container_is_given_up_at_the_bound_with_what_was_waited_for():
    async with launching(Script(starts_after=10_000)) as it:
        error = await refused(it.replica().launch(it.spec))
        record = await it.record()
    assert (error.code, "first containers" in error.message) == ("pod_start_timeout", True)
    assert 0 <= (record.ended_at - record.provision_by).total_seconds() < 1


async def test_the_bound_that_holds_is_the_records():
    async with launching(Script(starts_after=10_000), bounds={"provision": 40}) as it:
        await refused(it.replica().launch(it.spec))
        record = await it.record()
    assert 40 <= (record.ended_at - record.created_at).total_seconds() < 41


async def test_a_pod_that_somebody_deletes_meanwhile_is_not_waited_for():
    async with launching(Script(starts_after=100)) as it:
        launch = asyncio.create_task(it.replica().launch(it.spec))
        await it.until(lambda: it.pod is not None and it.pod["spec"].get("nodeName"))
        await it.cluster.delete(Kind.POD, it.settings.isolation.namespace, NAME)
        error = await refused(launch)
        assert (error.code, it.cluster.clock.monotonic() < 20) == ("sandbox_lost", True)


async def test_a_pod_that_its_node_refuses_is_told_in_the_nodes_words():
    async with launching(Script(starts_after=100)) as it:
        launch = asyncio.create_task(it.replica().launch(it.spec))
        await it.until(lambda: it.pod is not None and it.pod["spec"].get("nodeName"))
        status = {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"}
        it.cluster.store.edit(it.life.key, lambda pod: pod["status"].update(status))
        error = await refused(launch)
    assert (error.code, error.message) == ("pod_start_failed", "Node didn't have enough resource: cpu")


async def test_a_gate_that_opened_by_itself_is_not_trusted():
    async with launching(Script(starts_after=1)) as it:
        one = it.replica()

        async def opens():
            await asyncio.sleep(5)
            it.life.end("gate", 0)

        one.port.before(execs("receive"), opens)
        error = await refused(one.launch(it.spec))
        record = await it.record()
    assert (error.code, record.result.reason) == ("gate_restarted", "gate_restarted")
    assert "releasing" not in [entry.phase for entry in record.timeline]


async def test_a_gate_that_ends_while_nothing_is_sent_ends_the_launch_at_once():
    async with launching(Script(enforced=False)) as it:
        launch = asyncio.create_task(it.replica().launch(it.spec))
        await it.until(lambda: it.pod is not None and it.started("gate"))
        await asyncio.sleep(3)
        it.life.end("gate", 45, message='{"code": "seed_failed", "message": "the seed is damaged"}')
        error = await refused(launch)
        assert (error.code, it.cluster.clock.monotonic() < 20) == ("seed_failed", True)


def test_rounds_are_kept_as_the_prover_counted_them():
    state = ProverState(
        start_id="s",
        standing=True,
        ever_stood=True,
        standing_since=12.0,
        rounds=9,
        proven_rounds=7,
        first_round_at=10.0,
        first_good_at=11.0,
        last=LastRound("proven", "6", "", 0.5),
        now=20.0,
    )
    rounds = rounds_of(state)
    assert (rounds.count, rounds.proven, rounds.first_at, rounds.first_good_at) == (9, 7, 10.0, 11.0)
    assert (rounds.standing_since, rounds.last_at, rounds.last_verdict) == (12.0, 19.5, "proven")


def test_a_prover_without_a_round_has_no_last_one():
    rounds = rounds_of(ProverState(start_id="s", standing=False, ever_stood=False))
    assert (rounds.last_at, rounds.last_verdict) == (None, None)
