"""One launcher at a time: the lease on a launch, and the only hand through which a launch writes its record."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from launcher.cluster.errors import ClusterError, Throttled, Unreachable
from launcher.context import Context
from launcher.errors import PodgateError
from records.codec import Stored
from records.errors import OutcomeUnknown, RecordMissing
from records.model import Phase, Record
from records.transitions import Event, LeaseRenewed

_log = structlog.get_logger()

LEAST_LEFT = timedelta(seconds=3)
"""What must be left of the lease when a marker is sent: more than a write and a marker take together."""


class Lease:
    """Our hold on one launch under one epoch. ``stored`` is the newest record we know of."""

    def __init__(self, context: Context, stored: Stored) -> None:
        if stored.record.lease is None:
            raise ValueError("a record without a lease cannot be held")
        self._context = context
        self._writing = asyncio.Lock()
        self.stored = stored
        self.epoch = stored.record.lease.epoch

    @property
    def record(self) -> Record:
        """The newest record we know of."""
        return self.stored.record

    async def keep(self) -> None:
        """Renew until the launch is over. An unreachable API server suspends renewing and cancels nothing.

        Raises ``launch_superseded`` when the record says that the launch is not ours any more. Returns once an observer
        has seen the worker started: nothing is left to be held.
        """
        while not self._over(self.record):
            await self._context.sleep(self._context.settings.bounds.renewal)
            try:
                await self.write(self._renewed)
            except (OutcomeUnknown, ClusterError) as error:
                _log.warning("lease_not_renewed", token=self.record.token, error=str(error))

    async def hold(self) -> None:
        """Make sure that the lease is ours and lasts for the next few seconds, renewing it as long as that takes."""
        while self._context.cluster.now() + LEAST_LEFT >= self._expires_at():
            try:
                await self.write(self._renewed)
            except (OutcomeUnknown, Throttled, Unreachable) as error:
                _log.warning("lease_not_renewed", token=self.record.token, error=str(error))
                await self._context.sleep(1.0)

    async def write(self, decide: Callable[[Record], Event | None]) -> Stored:
        """Write one event to the record, if it is still ours to write. Raises ``launch_superseded`` otherwise."""
        async with self._writing:
            try:
                self.stored = await self._context.store.update(
                    self.record.token, lambda record: decide(self._ours(record)), known=self.stored
                )
            except RecordMissing as error:
                raise superseded("the record is gone") from error
        return self.stored

    def _ours(self, record: Record) -> Record:
        if record.stop is not None and not record.phase.terminal:
            raise superseded("a stop was requested")
        if record.phase.terminal:
            raise superseded(f"the run is {record.phase} already")
        if record.lease is None or record.lease.epoch != self.epoch:
            raise superseded("another replica has taken the launch over")
        return record

    def _renewed(self, record: Record) -> Event | None:
        until = self._context.cluster.now() + timedelta(seconds=self._context.settings.bounds.lease)
        return None if self._over(record) else LeaseRenewed(epoch=self.epoch, expires_at=until)

    def _over(self, record: Record) -> bool:
        return record.phase not in (Phase.PROVISIONING, Phase.RELEASING)

    def _expires_at(self) -> datetime:
        lease = self.record.lease
        if lease is None:
            raise superseded("the record has no lease any more")
        return lease.expires_at


def superseded(why: str) -> PodgateError:
    """Return the error of a launch that is not ours to go on with."""
    return PodgateError("launch_superseded", f"This launch ended because {why}.", stage="provision")
