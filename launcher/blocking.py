"""The launcher for callers that are not asynchronous: the same methods, each waiting for its answer.

::

    with BlockingLauncher(lambda: open_launcher(settings)) as launcher:
        handle = launcher.launch(spec)

One event loop in a thread of its own serves all calls, which may come from several threads at once. Leaving the block
waits for the launcher to close; leaving it by an exception cancels what is under way.
"""

from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from isolation.spec import JobSpec
from launcher.contract import JobHandle, JobLauncher, JobResult, JobStatus, Materialized

_CHUNKS = 16
"""Pieces of a log that wait for a slow reader; the stream itself is slowed down beyond that."""


class BlockingLauncher:
    """A :class:`JobLauncher` whose methods block. Every method raises what the asynchronous one raises."""

    def __init__(self, open_launcher: Callable[[], AbstractAsyncContextManager[JobLauncher]]) -> None:
        self._open = open_launcher
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._launcher: JobLauncher | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio", name="podgate"))
            self._launcher = stack.enter_context(portal.wrap_async_context_manager(self._open()))
            self._portal = portal
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal = self._launcher = None
        self._stack.__exit__(kind, error, trace)

    def planned_handle(self, spec: JobSpec | Mapping[str, Any]) -> JobHandle | None:
        """Compute the handle that ``launch`` would return; None for an invalid spec."""
        return self._opened()[1].planned_handle(spec)

    def launch(self, spec: JobSpec | Mapping[str, Any]) -> JobHandle:
        """Start the run, or find it; returns once the worker was released."""
        portal, launcher = self._opened()
        handle: JobHandle = portal.call(launcher.launch, spec)
        return handle

    def status(self, handle: JobHandle) -> JobStatus:
        """Observe the run now."""
        portal, launcher = self._opened()
        return portal.call(launcher.status, handle)

    def collect(self, handle: JobHandle) -> JobResult:
        """Read the outcome of a terminal run."""
        portal, launcher = self._opened()
        return portal.call(launcher.collect, handle)

    def materialize_workspace(self, handle: JobHandle, destination: Path | None = None) -> Materialized:
        """Replace the destination by the workspace as the worker left it, atomically."""
        portal, launcher = self._opened()
        return portal.call(launcher.materialize_workspace, handle, destination)

    def logs(self, handle: JobHandle, *, follow: bool = False) -> Generator[bytes]:
        """Yield the worker's output. Closing the iterator ends the stream."""
        portal, launcher = self._opened()
        send, receive = portal.call(_stream)
        pump = portal.start_task_soon(_pump, launcher.logs(handle, follow=follow), send)
        try:
            while True:
                try:
                    yield portal.call(receive.receive)
                except anyio.EndOfStream:
                    break
            pump.result()
        finally:
            pump.cancel()
            portal.call(receive.aclose)

    def stop(self, handle: JobHandle, reason: str | None = None) -> None:
        """End the run."""
        portal, launcher = self._opened()
        portal.call(launcher.stop, handle, reason)

    def remove(self, handle: JobHandle) -> None:
        """Delete what a terminal run left; its evidence stays."""
        portal, launcher = self._opened()
        portal.call(launcher.remove, handle)

    def evidence(self, handle: JobHandle) -> Mapping[str, Any]:
        """Everything the record holds about why the run started and how isolated it was."""
        portal, launcher = self._opened()
        return portal.call(launcher.evidence, handle)

    def _opened(self) -> tuple[BlockingPortal, JobLauncher]:
        if self._portal is None or self._launcher is None:
            raise RuntimeError("a BlockingLauncher works only inside its with block")
        return self._portal, self._launcher


_Send = anyio.abc.ObjectSendStream[bytes]
_Receive = anyio.abc.ObjectReceiveStream[bytes]


async def _stream() -> tuple[_Send, _Receive]:
    return anyio.create_memory_object_stream[bytes](_CHUNKS)


async def _pump(chunks: AsyncIterator[bytes], send: _Send) -> None:
    """Read the whole stream in one task: a generator with timeouts inside must not change tasks between two chunks."""
    async with send:
        async for chunk in chunks:
            await send.send(chunk)
