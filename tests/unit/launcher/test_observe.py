from datetime import timedelta

import pytest
from watched_run import NAME, TIMEOUT, TOKEN, WatchedRun, ended, running, waiting

from launcher.cluster.errors import Refused, Unreachable
from launcher.cluster.port import Kind
from launcher.contract import JobHandle
from launcher.errors import PodgateError
from launcher.observe import last_bytes, to_status
from launcher.testing.interceptor import calls
from launcher.testing.virtual_time import EPOCH, VirtualLoop
from records.birth import stopped_result
from records.model import Phase, Result
from records.transitions import Ended, LeaseRenewed, StopRequested

pytestmark = pytest.mark.anyio

SECOND = timedelta(seconds=1)
EVICTION = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
HANDLE = JobHandle("kubernetes", "podgate/x")


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture
def run():
    return WatchedRun()


async def test_an_unknown_token_has_no_record(run):
    assert await run.observer.observe(TOKEN) is None


async def test_a_terminal_record_is_not_looked_at(run):
    await run.recorded(Phase.SUCCEEDED)
    await run.observer.look(TOKEN)
    assert [call.kind for call in run.port.calls] == [Kind.CONFIG_MAP]


async def test_a_run_that_goes_on_costs_two_requests(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    stored, message = await run.observer.look(TOKEN)
    assert (stored.record.phase, message) == (Phase.ACTIVE, None)
    assert [call.method for call in run.port.calls] == ["get", "get"]


async def test_what_a_pending_run_waits_for_is_told(run):
    await run.recorded(Phase.RELEASING)
    run.shows(waiting("ErrImagePull", "no such host"))
    stored, message = await run.observer.look(TOKEN)
    assert stored.record.phase is Phase.RELEASING
    assert "no such host" in message


async def test_the_first_to_see_the_worker_started_fixes_the_deadline(run):
    await run.recorded(Phase.RELEASING)
    run.shows(running(EPOCH))
    record = (await run.observer.observe(TOKEN)).record
    assert record.phase is Phase.ACTIVE
    assert record.deadline_at == EPOCH + timedelta(seconds=TIMEOUT)
    assert record.collect_until == record.deadline_at + timedelta(seconds=3600)


async def test_start_and_end_of_a_short_worker_are_written_in_one_look(run):
    await run.recorded(Phase.RELEASING)
    run.proves()
    run.shows(ended(EPOCH, EPOCH + SECOND))
    record = (await run.observer.observe(TOKEN)).record
    assert [entry.phase for entry in record.timeline][-2:] == [Phase.ACTIVE, Phase.SUCCEEDED]
    assert record.evidence.end == "standing"


async def test_the_pod_of_an_ended_worker_is_kept_for_collection(run):
    await run.recorded(Phase.ACTIVE)
    run.proves()
    run.shows(ended(EPOCH, EPOCH + SECOND, 3))
    record = (await run.observer.observe(TOKEN)).record
    assert (record.phase, record.result.exit_code, record.result.reason) == (Phase.FAILED, 3, "worker_failed")
    assert run.has_pod()


async def test_a_worker_that_exits_0_after_isolation_was_lost_has_failed(run):
    await run.recorded(Phase.ACTIVE)
    run.proves("open", standing=False)
    run.latches("open")
    run.shows(ended(EPOCH, EPOCH + 8 * SECOND))
    record = (await run.observer.observe(TOKEN)).record
    assert (record.phase, record.result.reason) == (Phase.FAILED, "isolation_lost")
    assert record.result.exit_code != 0
    assert record.evidence.end == "open"


async def test_an_overdue_worker_is_timed_out_and_its_pod_deleted(run):
    await run.recorded(Phase.ACTIVE)
    run.proves()
    run.shows(running(EPOCH))
    run.cluster.clock.step(TIMEOUT)
    record = (await run.observer.observe(TOKEN)).record
    assert (record.phase, record.result.exit_code) == (Phase.FAILED, 124)
    assert [call.name for call in run.port.made("delete", Kind.POD)] == [NAME]


async def test_the_outcome_is_written_before_the_pod_is_touched(run):
    await run.recorded(Phase.ACTIVE)
    run.proves()
    run.shows(running(EPOCH))
    run.cluster.clock.step(TIMEOUT)
    await run.observer.observe(TOKEN)
    acts = [call.method for call in run.port.calls if call.method in ("replace", "delete")]
    assert acts == ["replace", "delete"]


async def test_a_delete_that_fails_does_not_hide_the_outcome(run):
    await run.recorded(Phase.ACTIVE)
    run.proves()
    run.shows(running(EPOCH))
    run.cluster.clock.step(TIMEOUT)
    run.port.fail(calls("delete", Kind.POD), Unreachable("delete Pod"))
    assert (await run.observer.observe(TOKEN)).record.result.reason == "timed_out"
    assert run.has_pod()


async def test_nothing_is_deleted_when_the_outcome_cannot_be_written(run):
    await run.recorded(Phase.ACTIVE)
    run.proves()
    run.shows(running(EPOCH))
    run.cluster.clock.step(TIMEOUT)
    run.port.fail(calls("replace", Kind.CONFIG_MAP), Refused("replace ConfigMap", status=403))
    with pytest.raises(Refused):
        await run.observer.observe(TOKEN)
    assert run.has_pod()


async def test_a_record_that_changed_meanwhile_is_looked_at_anew(run):
    stored = await run.recorded(Phase.RELEASING)
    run.shows(running(EPOCH))

    async def renew():
        later = stored.record.lease.expires_at + SECOND
        await run.store.update(TOKEN, lambda _: LeaseRenewed(1, later))

    run.port.before(calls("replace", Kind.CONFIG_MAP), renew)
    assert (await run.observer.observe(TOKEN)).record.phase is Phase.ACTIVE
    assert len(run.port.made("get", Kind.POD)) >= 2


async def test_an_outcome_that_another_replica_wrote_first_stands(run):
    await run.recorded(Phase.ACTIVE)
    run.proves()
    run.shows(ended(EPOCH, EPOCH + SECOND, 3))

    async def stop():
        await run.store.update(TOKEN, lambda _: Ended(Phase.STOPPED, stopped_result("enough"), run.cluster.now()))

    run.port.before(calls("replace", Kind.CONFIG_MAP), stop)
    assert (await run.observer.observe(TOKEN)).record.phase is Phase.STOPPED


async def test_the_pod_of_another_replicas_failure_is_not_deleted_for_ours(run):
    await run.recorded(Phase.ACTIVE)
    run.proves()
    run.shows(running(EPOCH))
    run.cluster.clock.step(TIMEOUT)

    async def fail():
        result = Result(exit_code=3, reason="worker_failed")
        await run.store.update(TOKEN, lambda _: Ended(Phase.FAILED, result, run.cluster.now()))

    run.port.before(calls("replace", Kind.CONFIG_MAP), fail)
    assert (await run.observer.observe(TOKEN)).record.result.reason == "worker_failed"
    assert run.has_pod()


async def test_a_write_whose_answer_was_lost_is_found_again(run):
    await run.recorded(Phase.ACTIVE)
    run.proves()
    run.shows(running(EPOCH))
    run.cluster.clock.step(TIMEOUT)
    run.port.lose_answer(calls("replace", Kind.CONFIG_MAP))
    assert (await run.observer.observe(TOKEN)).record.result.reason == "timed_out"


async def test_a_log_that_cannot_be_read_just_now_is_waited_for(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(ended(EPOCH, EPOCH + SECOND))
    run.port.fail(calls("log"), Unreachable("log"))
    stored, message = await run.observer.look(TOKEN)
    assert stored.record.phase is Phase.ACTIVE
    assert "prover's log" in message


async def test_a_log_that_stays_unreadable_leaves_the_end_unknown(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(ended(EPOCH, EPOCH + SECOND))
    run.cluster.clock.step(90)
    run.port.fail(calls("log"), Unreachable("log"))
    record = (await run.observer.observe(TOKEN)).record
    assert (record.phase, record.evidence.end) == (Phase.SUCCEEDED, "unknown")


async def test_a_probe_that_killed_the_worker_while_the_proof_stood_starved_it(run):
    await run.recorded(Phase.ACTIVE)
    run.proves()
    run.shows(ended(EPOCH, EPOCH + SECOND, 137))
    run.event("Killing", "Container worker failed liveness probe")
    assert (await run.observer.observe(TOKEN)).record.result.reason == "probe_starved"


async def test_events_that_may_not_be_read_are_none(run):
    await run.recorded(Phase.ACTIVE)
    run.proves()
    run.shows(ended(EPOCH, EPOCH + SECOND, 137))
    run.port.fail(calls("list", Kind.EVENT), Refused("list Event", status=403))
    assert (await run.observer.observe(TOKEN)).record.result.reason == "worker_failed"


async def test_an_active_run_without_its_pod_is_lost(run):
    await run.recorded(Phase.ACTIVE)
    run.without_pod()
    record = (await run.observer.observe(TOKEN)).record
    assert (record.phase, record.result.retriable, record.evidence.end) == (Phase.LOST, True, "unknown")


async def test_a_stopped_run_without_its_pod_is_never_lost(run):
    await run.recorded(Phase.ACTIVE)
    await run.store.update(TOKEN, lambda _: StopRequested(run.cluster.now(), "enough"))
    run.without_pod()
    assert (await run.observer.observe(TOKEN)).record.phase is Phase.STOPPED


async def test_a_pod_of_the_same_name_that_is_not_ours_counts_as_none(run):
    await run.recorded(Phase.ACTIVE)
    run.without_pod()
    run.pod(record_uid="another")
    run.shows(running(EPOCH))
    assert (await run.observer.observe(TOKEN)).record.phase is Phase.LOST
    assert run.has_pod()


async def test_a_provisioning_run_is_left_to_the_holder_of_its_lease(run):
    await run.recorded(Phase.PROVISIONING)
    run.without_pod()
    assert (await run.observer.observe(TOKEN)).record.phase is Phase.PROVISIONING


async def test_a_launch_without_a_holder_is_abandoned_after_a_while(run):
    await run.recorded(Phase.PROVISIONING)
    run.cluster.clock.step(91)
    record = (await run.observer.observe(TOKEN)).record
    assert (record.phase, record.result.reason) == (Phase.FAILED, "launch_abandoned")
    assert len(run.port.made("delete", Kind.POD)) == 1


async def test_an_eviction_seen_in_time_is_why_the_pod_is_gone(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH), conditions=[EVICTION])
    run.is_being_deleted(grace_seconds=10)
    stored, message = await run.observer.look(TOKEN)
    assert (stored.record.phase, stored.record.evidence.disruption) == (Phase.ACTIVE, "evicted")
    assert "being ended" in message
    run.without_pod()
    ended_record = (await run.observer.observe(TOKEN)).record
    assert (ended_record.phase, ended_record.result.reason) == (Phase.LOST, "evicted")


async def test_a_record_that_vanished_meanwhile_is_none(run):
    await run.recorded(Phase.RELEASING)
    run.shows(running(EPOCH))

    async def vanish():
        run.cluster.store.remove((Kind.CONFIG_MAP, run.namespace, NAME))

    run.port.before(calls("replace", Kind.CONFIG_MAP), vanish)
    assert await run.observer.observe(TOKEN) is None


@pytest.mark.parametrize(
    ("phase", "state"),
    [(Phase.PROVISIONING, "pending"), (Phase.RELEASING, "pending"), (Phase.ACTIVE, "running")],
)
async def test_a_run_that_has_not_ended_tells_what_it_waits_for(run, phase, state):
    record = (await run.recorded(phase)).record
    status = to_status(HANDLE, record, "a node")
    assert (status.state, status.reason, status.message) == (state, None, "a node")


async def test_an_ended_run_tells_how_it_ended(run):
    record = (await run.recorded(Phase.LOST)).record
    status = to_status(HANDLE, record, "a node")
    assert (status.state, status.phase, status.reason, status.message) == ("lost", "lost", "completed", None)


async def test_a_removed_run_has_no_status(run):
    record = (await run.recorded(Phase.SUCCEEDED)).record
    with pytest.raises(PodgateError, match="job_removed"):
        to_status(HANDLE, record.evolve(phase=Phase.REMOVED))


@pytest.mark.parametrize("most", [1, 3, 4, 9, 50])
async def test_the_last_bytes_of_a_stream_are_kept_and_no_more(most):
    async def pieces():
        for piece in (b"abc", b"", b"defg", b"h"):
            yield piece

    assert await last_bytes(pieces(), most) == b"abcdefgh"[-most:]
