import asyncio
from contextlib import asynccontextmanager

import pytest
from watched_run import NAME, TIMEOUT, TOKEN, WatchedRun, ended, running, waiting

from launcher.cluster.errors import Misconfigured, NotFound, Refused, Unreachable
from launcher.errors import PodgateError
from launcher.logs_of_worker import BROKEN_SECONDS, POLL_SECONDS, WorkerLog
from launcher.testing.interceptor import calls
from launcher.testing.virtual_time import EPOCH, VirtualLoop
from records.model import Phase
from records.transitions import Removed

pytestmark = pytest.mark.anyio

END = ended(EPOCH, EPOCH)


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture
def run():
    return WatchedRun()


def log_of(run, **bounds):
    return WorkerLog(
        run.port,
        run.store,
        run.settings,
        namespace=run.namespace,
        sleep=asyncio.sleep,
        monotonic=lambda: asyncio.get_running_loop().time(),
        **bounds,
    )


async def output(run, *, follow=False, **bounds):
    return b"".join([piece async for piece in log_of(run, **bounds).read(TOKEN, follow=follow)])


async def ends_after(run, seconds, *lines):
    """The worker says a line a second, and ends."""
    await asyncio.sleep(seconds)
    for line in lines:
        run.says("worker", line)
        await asyncio.sleep(1)
    run.shows(END)
    run.ends_log("worker")


async def test_the_output_of_an_ended_worker_comes_whole(run):
    await run.recorded(Phase.SUCCEEDED)
    run.shows(END)
    run.says("worker", b"one", b"\xff\x00two", b"")
    run.ends_log("worker")
    assert await output(run) == b"one\n\xff\x00two\n\n"


async def test_without_following_a_running_worker_s_output_so_far_is_all(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    run.says("worker", b"so far")
    assert await output(run) == b"so far\n"


async def test_following_ends_with_the_worker(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    run.says("worker", b"zero")
    async with asyncio.TaskGroup() as group:
        group.create_task(ends_after(run, 1, b"one", b"two"))
        assert await output(run, follow=True) == b"zero\none\ntwo\n"


async def test_following_waits_for_the_worker_to_start(run):
    await run.recorded(Phase.RELEASING)
    run.shows(waiting("PodInitializing"), phase="Pending")

    async def start():
        await asyncio.sleep(20)
        run.shows(running(EPOCH))
        await ends_after(run, 0, b"hello")

    async with asyncio.TaskGroup() as group:
        group.create_task(start())
        assert await output(run, follow=True) == b"hello\n"


async def test_without_following_a_worker_that_has_not_started_has_no_output(run):
    await run.recorded(Phase.RELEASING)
    run.shows(waiting("PodInitializing"), phase="Pending")
    assert await output(run) == b""
    assert run.port.made("log") == []


async def test_a_launch_that_nobody_goes_on_with_is_not_waited_for(run):
    await run.recorded(Phase.RELEASING)
    run.shows(waiting("PodInitializing"), phase="Pending")
    assert await output(run, follow=True) == b""
    assert run.cluster.clock.monotonic() <= 300 + 60 + 2


async def test_a_run_that_ended_before_its_worker_started_has_no_output(run):
    await run.recorded(Phase.FAILED)
    run.shows(waiting("InvalidImageName"), phase="Pending")
    assert await output(run, follow=True) == b""


async def test_a_run_whose_pod_is_gone_has_no_output_any_more(run):
    await run.recorded(Phase.SUCCEEDED)
    run.without_pod()
    assert await output(run, follow=True) == b""


async def test_a_pod_that_is_not_ours_is_not_read(run):
    await run.recorded(Phase.SUCCEEDED)
    run.without_pod()
    run.pod(record_uid="another")
    run.shows(END)
    run.says("worker", b"another's secret")
    assert await output(run) == b""


async def test_following_ends_when_the_pod_goes(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    run.says("worker", b"last words")

    async def vanish():
        await asyncio.sleep(5)
        run.without_pod()
        run.ends_log("worker")

    async with asyncio.TaskGroup() as group:
        group.create_task(vanish())
        assert await output(run, follow=True) == b"last words\n"


async def test_a_connection_that_cannot_be_opened_is_tried_again(run):
    await run.recorded(Phase.SUCCEEDED)
    run.shows(END)
    run.says("worker", b"one")
    run.ends_log("worker")
    run.port.fail(calls("log"), Unreachable("log"), times=3)
    assert await output(run) == b"one\n"


async def test_a_node_that_stays_away_is_an_error_and_no_empty_output(run):
    await run.recorded(Phase.SUCCEEDED)
    run.shows(END)
    run.port.fail(calls("log"), Unreachable("log"), times=10_000)
    with pytest.raises(PodgateError, match="collect_failed"):
        await output(run)
    assert run.cluster.clock.monotonic() <= BROKEN_SECONDS + 5


async def test_a_quiet_worker_is_followed_for_as_long_as_it_runs(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    run.says("worker", b"before")
    async with asyncio.TaskGroup() as group:
        group.create_task(ends_after(run, 1000, b"after"))
        assert await output(run, follow=True) == b"before\nafter\n"
    assert len(run.port.made("log")) > 10


async def test_a_connection_that_is_dead_without_a_sign_loses_nothing(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    run.says("worker", b"one")
    log = run.cluster.logs[run.namespace, NAME, "worker"]

    async def deafen():
        await asyncio.sleep(2)
        log.lines.append((run.cluster.now(), b"two"))  # written, and nobody is told
        await asyncio.sleep(200)
        await ends_after(run, 0, b"three")

    async with asyncio.TaskGroup() as group:
        group.create_task(deafen())
        assert await output(run, follow=True) == b"one\ntwo\nthree\n"


async def test_connections_that_are_cut_everywhere_lose_and_double_nothing(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    cut_every(run, 40)
    said = [b"a", b"", b"\xff\x00" * 60, b"b", b"the last"]
    async with asyncio.TaskGroup() as group:
        group.create_task(ends_after(run, 1, *said))
        assert await output(run, follow=True) == b"\n".join(said) + b"\n"
    assert len(run.port.made("log")) > len(said)


def cut_every(run, size):
    """Let each connection break after ``size`` more bytes than the one before it had."""
    whole, allowed = run.cluster.log, iter(range(size, 1_000_000, size))

    @asynccontextmanager
    async def cut(*args, **kwargs):
        async with whole(*args, **kwargs) as pieces:
            yield first(pieces, next(allowed))

    run.cluster.log = cut


async def first(pieces, left):
    async for piece in pieces:
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            raise Unreachable("log", reason="cut")


async def test_a_node_that_lets_go_of_a_running_worker_s_log_is_asked_again(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    run.says("worker", b"one")
    log = run.cluster.logs[run.namespace, NAME, "worker"]

    async def rotate():
        await asyncio.sleep(5)
        log.end()
        await asyncio.sleep(5)
        log.ended = False
        await ends_after(run, 0, b"two")

    async with asyncio.TaskGroup() as group:
        group.create_task(rotate())
        assert await output(run, follow=True) == b"one\ntwo\n"


async def test_a_worker_that_ends_with_a_last_word_after_its_follower_was_let_go_is_heard(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    run.says("worker", b"one")

    async def end():
        await asyncio.sleep(5)
        run.ends_log("worker")
        run.shows(END)
        await asyncio.sleep(POLL_SECONDS / 2)
        run.says("worker", b"last")

    async with asyncio.TaskGroup() as group:
        group.create_task(end())
        assert await output(run, follow=True) == b"one\nlast\n"


async def test_a_status_that_goes_back_ends_no_following(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    run.says("worker", b"one")
    run.port.fail(calls("log"), Unreachable("log"), nth=2)

    async def confuse():
        await asyncio.sleep(5)
        run.shows(waiting("PodInitializing"), phase="Pending")
        await asyncio.sleep(90)
        run.shows(running(EPOCH))
        await ends_after(run, 0, b"two")

    async with asyncio.TaskGroup() as group:
        group.create_task(confuse())
        assert await output(run, follow=True) == b"one\ntwo\n"


async def test_a_long_wait_for_the_start_is_no_broken_connection(run):
    await run.recorded(Phase.RELEASING)
    run.shows(waiting("PodInitializing"), phase="Pending")
    run.port.fail(calls("log"), Unreachable("log"))

    async def start():
        await asyncio.sleep(2 * BROKEN_SECONDS)
        run.shows(running(EPOCH))
        await ends_after(run, 0, b"hello")

    async with asyncio.TaskGroup() as group:
        group.create_task(start())
        assert await output(run, follow=True) == b"hello\n"


async def test_a_reader_that_is_slow_is_no_broken_connection(run):
    await run.recorded(Phase.SUCCEEDED)
    run.shows(END)
    run.says("worker", b"one", b"two")
    run.ends_log("worker")
    cut_every(run, 40)
    heard = b""
    async for piece in log_of(run).read(TOKEN):
        heard += piece
        await asyncio.sleep(2 * BROKEN_SECONDS)
    assert heard == b"one\ntwo\n"


@pytest.mark.parametrize("silent", [False, True])
async def test_connections_that_come_to_stand_and_bring_nothing_are_given_up(run, silent):
    await run.recorded(Phase.SUCCEEDED)
    run.shows(END)
    run.cluster.log = bringing_nothing(silent=silent)
    with pytest.raises(PodgateError, match="collect_failed"):
        await output(run, follow=True)
    assert run.cluster.clock.monotonic() <= 2 * BROKEN_SECONDS


def bringing_nothing(*, silent):
    @asynccontextmanager
    async def opened(*_args, **_kwargs):
        async def pieces():
            if silent:
                await asyncio.Event().wait()
            raise Unreachable("log", reason="cut")
            yield b""

        yield pieces()

    return opened


async def test_a_start_that_the_node_does_not_know_of_yet_is_waited_for(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    run.says("worker", b"one")
    run.port.fail(calls("log"), Refused("log", status=400), times=2)
    assert await output(run) == b"one\n"


async def test_a_worker_that_ended_without_ever_starting_has_no_output(run):
    await run.recorded(Phase.FAILED)
    run.shows(END)
    run.port.fail(calls("log"), Refused("log", status=400))
    assert await output(run, follow=True) == b""


async def test_a_worker_that_nobody_sees_after_its_deadline_is_not_followed_for_ever(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(waiting("PodInitializing"), phase="Pending")
    assert await output(run, follow=True) == b""
    assert run.cluster.clock.monotonic() <= TIMEOUT + 60 + 2


async def test_the_server_s_apology_after_an_eviction_is_no_output(run):
    await run.recorded(Phase.LOST)
    run.shows(END, phase="Failed", reason="Evicted")
    run.cluster.log = apologizing
    assert await output(run) == b""


@asynccontextmanager
async def apologizing(*_args, **_kwargs):
    async def pieces():
        yield b"unable to retrieve container logs for containerd://0123"

    yield pieces()


async def test_more_than_the_bound_is_an_error_after_so_many_bytes(run):
    await run.recorded(Phase.SUCCEEDED)
    run.shows(END)
    run.says("worker", b"12345", b"67890")
    run.ends_log("worker")
    reading = log_of(run, most_bytes=8).read(TOKEN)
    assert [await anext(reading), await anext(reading)] == [b"12345\n", b"67"]
    with pytest.raises(PodgateError, match="collect_failed"):
        await anext(reading)


async def test_exactly_the_bound_is_no_error(run):
    await run.recorded(Phase.SUCCEEDED)
    run.shows(END)
    run.says("worker", b"12345")
    run.ends_log("worker")
    assert await output(run, most_bytes=6) == b"12345\n"


async def test_a_log_whose_pod_goes_as_it_is_opened_ends_cleanly(run):
    await run.recorded(Phase.SUCCEEDED)
    run.shows(END)
    run.port.fail(calls("log"), NotFound("log"))
    assert await output(run) == b""


async def test_access_that_is_denied_is_no_empty_output(run):
    await run.recorded(Phase.SUCCEEDED)
    run.shows(END)
    run.port.fail(calls("log"), Refused("log", status=403))
    with pytest.raises(Refused):
        await output(run)


async def test_an_error_that_time_does_not_heal_passes_at_once(run):
    await run.recorded(Phase.SUCCEEDED)
    run.shows(END)
    run.port.fail(calls("log"), Misconfigured("log"))
    with pytest.raises(Misconfigured):
        await output(run)


async def test_an_unknown_run_is_not_found(run):
    with pytest.raises(PodgateError, match="job_not_found"):
        await output(run)


async def test_a_removed_run_has_no_output(run):
    await run.recorded(Phase.SUCCEEDED)
    await run.store.update(TOKEN, lambda _: Removed(run.cluster.now()))
    with pytest.raises(PodgateError, match="job_removed"):
        await output(run)


async def test_a_reader_that_stops_early_leaves_no_connection_open(run):
    await run.recorded(Phase.ACTIVE)
    run.shows(running(EPOCH))
    connections = []
    run.cluster.log = counted(connections)
    reading = log_of(run).read(TOKEN, follow=True)
    assert await anext(reading) == b"one\n"
    assert connections == ["opened"]
    await reading.aclose()
    assert connections == ["opened", "closed"]


def counted(connections):
    @asynccontextmanager
    async def opened(*_args, **_kwargs):
        async def pieces():
            yield b"2026-01-01T00:00:00.000000000Z one\n"
            await asyncio.Event().wait()

        connections.append("opened")
        try:
            yield pieces()
        finally:
            connections.append("closed")

    return opened
