import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs
from watched_run import NAME, TOKEN, WatchedRun, ended, running

from launcher.cluster.errors import NotFound, Refused, Unreachable
from launcher.cluster.port import Kind
from launcher.collect import LOG_SECONDS, LOG_TRIES, Collector, to_result
from launcher.contract import JobHandle
from launcher.decide.diagnostics import LINES
from launcher.errors import PodgateError
from launcher.testing.interceptor import calls
from launcher.testing.virtual_time import EPOCH, VirtualLoop
from launcher.transfer.download import ResultRead
from records.model import Phase, Result
from records.transitions import Removed, ResultFilled

pytestmark = pytest.mark.anyio

HANDLE = JobHandle("kubernetes", "podgate/x")
END = ended(EPOCH, EPOCH)


class Keeper:
    """Stands for the transfer out of the keeper: says ``content``, or raises ``error``."""

    def __init__(self):
        self.content = b'{"passed": 3}'
        self.error = None
        self.asked = 0
        self.meanwhile = None

    async def __call__(self, cluster, namespace, pod, max_bytes, *, idle_seconds, sleep):
        self.asked += 1
        if self.meanwhile is not None:
            await self.meanwhile()
        if self.error is not None:
            raise self.error
        if self.content is None:
            return ResultRead(present=False, bytes=0, content=None)
        fits = len(self.content) <= max_bytes
        return ResultRead(present=True, bytes=len(self.content), content=self.content if fits else None)


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture
def run():
    return WatchedRun()


@pytest.fixture
def keeper():
    return Keeper()


@pytest.fixture
def collector(run, keeper):
    return Collector(
        run.port, run.store, run.observer, run.settings, namespace=run.namespace, sleep=asyncio.sleep, reads=keeper
    )


async def succeeded(run, **fields):
    await run.recorded(Phase.SUCCEEDED, **fields)
    run.shows(END)


async def failed(run):
    await run.recorded(Phase.FAILED)
    run.shows(ended(EPOCH, EPOCH, 3))


async def collected(collector):
    return (await collector.collect(TOKEN)).record.result


async def test_the_result_is_read_once_and_equal_ever_after(run, collector, keeper):
    await succeeded(run)
    first = await collected(collector)
    keeper.content = b'{"other": true}'
    run.without_pod()
    assert (first.artifacts, first.result_artifact) == ("collected", {"passed": 3})
    assert await collected(collector) == first
    assert keeper.asked == 1


async def test_two_replicas_that_collect_at_once_give_one_answer(run, collector, keeper):
    await succeeded(run)

    async def other():
        keeper.meanwhile = None
        other = Result(exit_code=0, reason="completed", artifacts="expired")
        await run.store.update(TOKEN, lambda _: ResultFilled(other))

    keeper.meanwhile = other
    assert (await collected(collector)).artifacts == "expired"


async def test_a_run_in_provisioning_cannot_be_collected(run, collector):
    await run.recorded(Phase.PROVISIONING)
    with pytest.raises(PodgateError, match="job_not_terminal"):
        await collector.collect(TOKEN)


async def test_a_running_run_cannot_be_collected(run, collector):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    with pytest.raises(PodgateError, match="job_not_terminal"):
        await collector.collect(TOKEN)


async def test_a_removed_run_cannot_be_collected(run, collector):
    await run.recorded(Phase.SUCCEEDED)
    await run.store.update(TOKEN, lambda _: Removed(run.cluster.now()))
    with pytest.raises(PodgateError, match="job_removed"):
        await collector.collect(TOKEN)


async def test_a_run_that_is_removed_while_it_is_read_has_no_result(run, collector, keeper):
    await succeeded(run)

    async def remove():
        await run.store.update(TOKEN, lambda _: Removed(run.cluster.now()))

    keeper.meanwhile = remove
    with pytest.raises(PodgateError, match="job_removed"):
        await collector.collect(TOKEN)


async def test_a_record_that_is_reaped_while_its_result_is_read_is_not_found(run, collector, keeper):
    await succeeded(run)

    async def reap():
        run.cluster.store.remove((Kind.CONFIG_MAP, run.namespace, NAME))

    keeper.meanwhile = reap
    with pytest.raises(PodgateError, match="job_not_found"):
        await collector.collect(TOKEN)


async def test_an_unknown_token_is_not_found(collector):
    with pytest.raises(PodgateError, match="job_not_found"):
        await collector.collect(TOKEN)


async def test_a_run_that_has_ended_unseen_is_observed_first(run, collector):
    await run.recorded(Phase.ACTIVE)
    run.proves()
    run.shows(END)
    assert (await collector.collect(TOKEN)).record.phase is Phase.SUCCEEDED


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no json", "result_invalid"),
        (b'{"runId": "another"}', "result_run_mismatch"),
        (b'{"a":"' + b"x" * 65_536 + b'"}', "result_too_large"),
    ],
)
async def test_a_broken_result_is_told_as_such_and_the_run_stays_succeeded(run, collector, keeper, content, problem):
    await succeeded(run)
    keeper.content = content
    stored = await collector.collect(TOKEN)
    result = stored.record.result
    assert stored.record.phase is Phase.SUCCEEDED
    assert (result.artifacts, result.diagnostic, result.result_artifact) == ("invalid", problem, None)


async def test_a_result_that_is_no_regular_file_is_invalid(run, collector, keeper):
    await succeeded(run)
    keeper.error = PodgateError("result_invalid", "it is a fifo")
    assert (await collected(collector)).diagnostic == "result_invalid"


@pytest.mark.parametrize(("required", "diagnostic"), [(False, None), (True, "result_missing")])
async def test_a_result_that_was_not_written(run, collector, keeper, required, diagnostic):
    await succeeded(run, require_result=required)
    keeper.content = None
    result = await collected(collector)
    assert (result.artifacts, result.diagnostic) == ("absent", diagnostic)


async def test_a_result_that_could_not_be_read_is_an_error_and_can_be_read_later(run, collector, keeper):
    await succeeded(run)
    keeper.error = PodgateError("collect_failed", "cut")
    with pytest.raises(PodgateError, match="collect_failed"):
        await collector.collect(TOKEN)
    assert (await run.store.read(TOKEN)).record.result.artifacts == "unknown"
    keeper.error = None
    assert (await collected(collector)).artifacts == "collected"


@pytest.mark.parametrize("error", [PodgateError("collect_failed", "cut"), NotFound("exec")])
async def test_files_that_go_while_they_are_read_are_expired(run, collector, keeper, error):
    await succeeded(run)

    async def vanish():
        run.without_pod()

    keeper.meanwhile, keeper.error = vanish, error
    assert (await collected(collector)).artifacts == "expired"


@pytest.mark.parametrize("how", ["no pod", "keeper ended", "pod failed", "another's pod"])
async def test_files_that_cannot_be_had_any_more_are_expired(run, collector, keeper, how):
    await succeeded(run)
    if how == "keeper ended":
        run.shows(END, keeper=END)
    elif how == "pod failed":
        run.shows(END, phase="Failed", reason="Evicted")
    else:
        run.without_pod()
    if how == "another's pod":
        run.pod(record_uid="another")
    assert (await collected(collector)).artifacts == "expired"
    assert keeper.asked == 0


async def test_a_failed_worker_s_own_word_is_its_diagnostic(run, collector, keeper):
    await failed(run)
    run.says("worker", b"noise", {"error": "worker_tests_failed", "secret": "hunter2"})
    result = await collected(collector)
    assert (result.diagnostic, result.artifacts) == ("worker_tests_failed", "absent")
    assert "hunter2" not in json.dumps((await run.cluster.get(Kind.CONFIG_MAP, run.namespace, NAME))["data"])
    assert keeper.asked == 0


async def test_a_failed_worker_without_a_word_has_no_diagnostic(run, collector):
    await failed(run)
    run.says("worker", b"Traceback (most recent call last)")
    assert (await collected(collector)).diagnostic is None


async def test_a_worker_that_never_started_has_no_log_and_no_diagnostic(run, collector):
    await failed(run)
    run.port.fail(calls("log"), Refused("log", status=400))
    result = await collected(collector)
    assert (result.diagnostic, result.artifacts) == (None, "absent")


async def test_a_log_whose_pod_is_gone_is_expired(run, collector):
    await failed(run)
    run.port.fail(calls("log"), NotFound("log"))
    assert (await collected(collector)).artifacts == "expired"


async def test_a_log_that_cannot_be_read_just_now_is_read_again(run, collector):
    await failed(run)
    run.says("worker", {"error": "worker_x"})
    run.port.fail(calls("log"), Unreachable("log"), times=LOG_TRIES - 1)
    assert (await collected(collector)).diagnostic == "worker_x"


@pytest.mark.parametrize("error", [Unreachable("log"), Refused("log", status=403)])
async def test_a_log_that_cannot_be_read_is_noted_and_the_outcome_told_without(run, collector, error):
    await failed(run)
    run.says("worker", {"error": "worker_x"})
    run.port.fail(calls("log"), error, times=LOG_TRIES)
    with capture_logs() as noted:
        result = await collected(collector)
    assert (result.diagnostic, result.artifacts, result.reason) == (None, "absent", "completed")
    assert [entry["event"] for entry in noted] == ["diagnostic_unread"]
    assert await collected(collector) == result


async def test_a_log_that_never_ends_is_given_up_after_a_while(run, collector):
    await failed(run)
    run.cluster.log = endless
    assert (await collected(collector)).diagnostic is None
    assert run.cluster.clock.monotonic() <= LOG_SECONDS + 1


@asynccontextmanager
async def endless(*_args, **_kwargs):
    async def pieces():
        while True:
            await asyncio.sleep(1)
            yield b"x" * 1000

    yield pieces()


async def test_an_api_server_that_is_away_leaves_the_question_open(run, collector):
    """Whether the pod is there is not known then, and what is stored stands for ever."""
    await failed(run)
    run.port.fail(calls("get", Kind.POD), Unreachable("get"))
    with pytest.raises(Unreachable):
        await collector.collect(TOKEN)
    assert (await run.store.read(TOKEN)).record.result.artifacts == "unknown"


async def test_only_the_last_lines_are_asked_for(run, collector):
    await failed(run)
    run.says("worker", {"error": "worker_early"}, *[b"noise"] * LINES)
    assert (await collected(collector)).diagnostic is None


@pytest.mark.parametrize(("phase", "artifacts"), [(Phase.STOPPED, "absent"), (Phase.LOST, "expired")])
async def test_nobody_asks_a_stopped_or_lost_worker_why(run, collector, keeper, phase, artifacts):
    await run.recorded(phase)
    assert (await collected(collector)).artifacts == artifacts
    assert (keeper.asked, run.port.made("log")) == (0, [])


async def test_a_caller_sees_outcome_result_and_evidence(run, collector):
    await succeeded(run)
    result = to_result(HANDLE, (await collector.collect(TOKEN)).record)
    assert (result.state, result.exit_code, result.reason) == ("succeeded", 0, "completed")
    assert (result.result, result.artifacts, result.evidence["startId"]) == ({"passed": 3}, "collected", "s")


async def test_a_run_that_has_not_ended_has_no_result(run):
    record = (await run.recorded(Phase.ACTIVE)).record
    with pytest.raises(PodgateError, match="job_not_terminal"):
        to_result(HANDLE, record)
