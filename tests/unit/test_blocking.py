import asyncio
import contextlib
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from launcher.blocking import BlockingLauncher
from launcher.contract import JobHandle, JobLauncher, JobResult, Materialized
from launcher.errors import PodgateError

HANDLE = JobHandle("kubernetes", "podgate/x")


class Recording:
    """Answers at once, and remembers on which thread and whether it was closed."""

    def __init__(self):
        self.open = False
        self.threads = set()
        self.closed_streams = 0
        self.stopping = threading.Event()

    @contextlib.asynccontextmanager
    async def opened(self):
        self.open = True
        try:
            yield self
        finally:
            self.open = False

    def planned_handle(self, spec):
        return HANDLE if spec else None

    async def launch(self, spec):
        self.threads.add(threading.get_ident())
        return HANDLE

    async def status(self, handle):
        await asyncio.sleep(0)
        raise PodgateError("job_not_found", "no such run")

    async def collect(self, handle):
        return JobResult(handle, "succeeded", 0, "completed")

    async def materialize_workspace(self, handle, destination=None):
        return Materialized(destination, 1, 2, "c")

    async def logs(self, handle, *, follow=False):
        try:
            async with asyncio.timeout(60):  # breaks when another task asks for the next chunk
                for number in range(1_000):
                    yield str(number).encode()
        finally:
            self.closed_streams += 1

    async def stop(self, handle, reason=None):
        self.stopping.set()
        await asyncio.Event().wait()

    async def remove(self, handle):
        self.removed = handle

    async def evidence(self, handle):
        return {"end": "standing"}


@pytest.fixture
def recording():
    return Recording()


@pytest.fixture
def launcher(recording):
    with BlockingLauncher(recording.opened) as opened:
        yield opened


def test_the_facade_has_every_method_of_the_contract():
    contract = {name for name in vars(JobLauncher) if not name.startswith("_")}
    assert contract <= set(vars(BlockingLauncher))


def test_calls_are_served_by_one_loop_in_another_thread(launcher, recording):
    assert [launcher.launch({"a": 1}), launcher.launch({})] == [HANDLE, HANDLE]
    assert len(recording.threads) == 1
    assert threading.get_ident() not in recording.threads


def test_values_come_back(launcher, recording):
    assert launcher.planned_handle({}) is None
    assert launcher.collect(HANDLE).state == "succeeded"
    assert launcher.materialize_workspace(HANDLE, Path("there")).path == Path("there")
    assert launcher.evidence(HANDLE) == {"end": "standing"}
    launcher.remove(HANDLE)
    assert recording.removed == HANDLE


def test_errors_come_back_as_they_are(launcher):
    with pytest.raises(PodgateError, match="job_not_found"):
        launcher.status(HANDLE)


def test_a_log_is_read_whole_and_in_order(launcher, recording):
    assert list(launcher.logs(HANDLE)) == [str(number).encode() for number in range(1_000)]
    assert recording.closed_streams == 1


def test_a_log_that_is_left_early_is_closed(recording):
    with BlockingLauncher(recording.opened) as launcher:
        stream = launcher.logs(HANDLE, follow=True)
        assert next(stream) == b"0"
        stream.close()
    assert recording.closed_streams == 1


def test_several_threads_may_call_at_once(launcher):
    handles = []
    threads = [threading.Thread(target=lambda: handles.append(launcher.launch({}))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handles == [HANDLE] * 8


def test_leaving_closes_the_launcher(recording):
    with BlockingLauncher(recording.opened):
        assert recording.open
    assert not recording.open


def stop_until_cancelled(launcher):
    with pytest.raises(CancelledError):
        launcher.stop(HANDLE)


def test_leaving_by_an_exception_cancels_what_is_under_way(recording):
    def fail():
        with BlockingLauncher(recording.opened) as launcher:
            thread = threading.Thread(target=stop_until_cancelled, args=(launcher,))
            thread.start()
            assert recording.stopping.wait(timeout=10)
            raise LookupError(thread)

    with pytest.raises(LookupError) as caught:
        fail()
    caught.value.args[0].join(timeout=10)
    assert not caught.value.args[0].is_alive()


def test_outside_its_block_it_says_so(recording):
    with pytest.raises(RuntimeError, match="inside its with block"):
        BlockingLauncher(recording.opened).launch({})
