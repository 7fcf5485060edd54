"""Bringing a workspace back.

Into a staging directory beside the destination, then one swap that leaves the old or the new, whole.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isolation.names import KEEPER
from launcher.cluster.port import ClusterPort, ExecStream
from launcher.contract import Materialized
from launcher.errors import PodgateError
from launcher.extract.extraction import Extraction, Limits
from launcher.extract.rules import ENTRY_LIMIT
from launcher.extract.swap import Place, Staging
from launcher.transfer.download import IDLE_SECONDS, Received, download, workspace_argv
from launcher.transfer.framing import TransferBroken
from launcher.transfer.retry import Sleep, tried
from launcher.transfer.threads import in_thread

SECONDS = 3600.0
"""Time for one transfer with its extraction: 32 GiB at 10 MB/s, and never longer than the collect window's default."""


async def materialize(
    cluster: ClusterPort,
    namespace: str,
    pod: str,
    destination: Path,
    *,
    disk_mb: int,
    exclude: Sequence[str] = (),
    idle_seconds: float = IDLE_SECONDS,
    seconds: float = SECONDS,
    sleep: Sleep = asyncio.sleep,
) -> Materialized:
    """Replace ``destination`` (a directory, or nothing yet; its parents are made) by the workspace in the keeper.

    ``disk_mb`` bounds what may come, ``exclude`` are the spec's relative paths, ``seconds`` bound one try. Raises
    ``collect_failed``, ``extract_*``, ``workspace_invalid`` (a destination that may not be); then the destination is
    what it was.
    """
    command = workspace_argv(exclude=exclude, max_bytes=disk_mb << 20, max_entries=ENTRY_LIMIT)
    place = Place(destination)
    transfer = _Transfer(place, Limits(content_bytes=disk_mb << 20, seconds=seconds), idle_seconds)

    async def attempt() -> Received:
        async with asyncio.timeout(seconds), cluster.exec(namespace, pod, KEEPER, command) as stream:
            return await transfer.run(stream)

    try:
        await in_thread(place.open)
        received = await tried(attempt, sleep=sleep)
    except TransferBroken as error:
        raise PodgateError(
            "collect_failed", f"the workspace did not come back whole: {error}", stage="collect"
        ) from error
    except TimeoutError as error:
        raise PodgateError(
            "extract_time_limit", f"the transfer did not end within {seconds:g} s", stage="collect"
        ) from error
    finally:
        await in_thread(place.close)
    return Materialized(destination, received.entries, received.bytes, received.sha256, received.excluded)


@dataclass(frozen=True)
class _Transfer:
    place: Place
    limits: Limits
    idle_seconds: float

    async def run(self, stream: ExecStream) -> Received:
        """Fill a staging directory of its own, and swap it in when all of it is right."""
        staging = await in_thread(self.place.stage)
        try:
            received = await self._fill(stream, staging)
            await in_thread(self.place.swap, staging)
        finally:
            await in_thread(self.place.discard, staging)
        return received

    async def _fill(self, stream: ExecStream, staging: Staging) -> Received:
        extraction = Extraction(staging.fd, self.limits)
        try:
            received = await download(stream, extraction.feed, idle_seconds=self.idle_seconds)
            if received.entries != extraction.entries:
                raise TransferBroken("the sender counted other entries than came")
            await in_thread(extraction.finish)
        finally:
            extraction.close()
        return received
