"""Records under compare-and-swap: read, decide, replace what was read; on conflict read again and decide again.

Nothing is ever assumed about a write whose answer was lost: the record is read, and the decision made on what is there.
"""

from collections.abc import Awaitable, Callable

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from records.codec import Stored, from_object, to_object
from records.errors import (
    NameTaken,
    NotThere,
    OutcomeUnknown,
    RecordConflict,
    RecordExists,
    RecordMissing,
    Stale,
)
from records.model import Record
from records.ports import ConfigMapsPort, Json, Naming
from records.transitions import Event, apply

TRIES = 8
"""With full jitter, eight tries let some forty observers of one record through; more would hide a loop."""

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
"""Seconds. A replace takes 5-20 ms; the sum of all pauses stays below the lease's renewal period."""

Decide = Callable[[Record], Event | None]
Sleep = Callable[[float], Awaitable[None]]


class RecordStore:
    """The records of one namespace.

    Every method may also raise RecordInvalid and RecordTooNew, and whatever the port raises besides its own errors.
    """

    def __init__(self, port: ConfigMapsPort, naming: Naming, *, sleep: Sleep, tries: int = TRIES) -> None:
        self._port = port
        self._naming = naming
        self._sleep = sleep
        self._tries = tries

    async def read(self, token: str) -> Stored | None:
        """Read a record; None when there is none."""
        body = await self._port.get(self._naming.name_of(token))
        return None if body is None else from_object(body, self._naming)

    def parse(self, body: Json) -> Stored:
        """Read a record from a ConfigMap that was fetched by a list, say. Raises RecordInvalid, RecordTooNew."""
        return from_object(body, self._naming)

    async def create(self, record: Record) -> Stored:
        """Create a record. Raises RecordExists with the one that is there, unless that is this very record.

        A record is this very one when holder, createdAt and specHash are equal: the holder names one launch call, so it
        can only be ours, created by a request whose answer was lost. It comes back as it is now.
        """
        body = to_object(record, self._naming)

        async def attempt() -> Stored:
            try:
                return from_object(await self._port.create(body), self._naming)
            except (NameTaken, OutcomeUnknown) as error:
                return await self._found(record, error)

        return await self._retried(record.token, attempt)

    async def update(self, token: str, decide: Decide, *, known: Stored | None = None) -> Stored:
        """Write the event that ``decide`` wants for the record as it is now, and return what is stored then.

        ``decide`` may be called several times, each time with what was just read; None means that nothing is to be
        written (any more). ``known``, read earlier, saves the first read; the first replace tells if it is out of date.
        Raises RecordMissing, RecordConflict, OutcomeUnknown, and IllegalTransition from the event.
        """
        fast: list[Stored] = [known] if known is not None else []

        async def attempt() -> Stored:
            stored = fast.pop() if fast else await self._must_read(token)
            event = decide(stored.record)
            after = stored.record if event is None else apply(stored.record, event)
            return stored if after is stored.record else await self._replace(stored, after)

        return await self._retried(token, attempt)

    async def delete(self, stored: Stored) -> bool:
        """Delete a record by its uid; what it owns follows. False when absent, Stale when another has its name."""
        return await self._port.delete(self._naming.name_of(stored.record.token), uid=stored.uid)

    async def _replace(self, stored: Stored, after: Record) -> Stored:
        body = to_object(after, self._naming, replacing=stored)
        try:
            return from_object(await self._port.replace(str(body["metadata"]["name"]), body), self._naming)
        except NotThere:
            raise RecordMissing(after.token) from None

    async def _must_read(self, token: str) -> Stored:
        stored = await self.read(token)
        if stored is None:
            raise RecordMissing(token)
        return stored

    async def _found(self, wanted: Record, error: NameTaken | OutcomeUnknown) -> Stored:
        """Look at what a create met. Absent means: try again, it never arrived, or the other is gone already."""
        stored = await self.read(wanted.token)
        if stored is None:
            raise error
        if _same_birth(stored.record, wanted):
            return stored
        raise RecordExists(stored)

    async def _retried(self, token: str, attempt: Callable[[], Awaitable[Stored]]) -> Stored:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._tries),
            wait=wait_random_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE),
            retry=retry_if_exception_type((Stale, NameTaken, OutcomeUnknown)),
            sleep=self._sleep,
            retry_error_callback=lambda state: _given_up(token, state),
        )
        stored: Stored = await retrying(attempt)
        return stored


def _same_birth(there: Record, wanted: Record) -> bool:
    holder = there.lease.holder if there.lease else None
    wanted_holder = wanted.lease.holder if wanted.lease else None
    if wanted_holder is None:
        return there == wanted
    return (holder, there.created_at, there.spec_hash) == (wanted_holder, wanted.created_at, wanted.spec_hash)


def _given_up(token: str, state: RetryCallState) -> Stored:
    """An answer that stayed lost is told as such; everything else was another writer."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, OutcomeUnknown):
        raise error
    raise RecordConflict(token, state.attempt_number) from error
