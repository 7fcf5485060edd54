"""What can go wrong with records.

::

    RecordError
    ├── RecordInvalid        what is stored is not a record that we wrote
    ├── RecordTooNew         it was written by a newer version; it is not guessed at
    ├── RecordMissing        there is none under that token
    ├── RecordExists         there is one already; it is carried along
    ├── RecordConflict       it changed under every one of our tries; nothing of ours was written
    ├── IllegalTransition    the event may not happen to the record as it is now; nothing was written
    └── PortError            what a ConfigMapsPort says of one request
        ├── NameTaken        a create found an object of that name
        ├── Stale            another write came first; nothing was done
        ├── NotThere         a replace found no object
        └── OutcomeUnknown   the answer was lost: the write may have been carried out or not

Messages name tokens, phases and fields, never a record's content.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from records.codec import Stored


class RecordError(Exception):
    """Base of everything this package raises on purpose."""


class RecordInvalid(RecordError):
    """The stored object is not a record that we wrote. Nothing was changed."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"{name}: {problem}")


class RecordTooNew(RecordError):
    """The record has a schema version that this code does not know. Nothing was changed."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        super().__init__(f"{name}: schema version {version}")


class RecordMissing(RecordError):
    """No record has that token."""

    def __init__(self, token: str) -> None:
        self.token = token
        super().__init__(f"no record {token}")


class RecordExists(RecordError):
    """A create found another launch's record. ``stored`` is that record, as read afterwards."""

    def __init__(self, stored: "Stored") -> None:
        self.stored = stored
        super().__init__(f"record {stored.record.token} exists, {stored.record.phase}")


class RecordConflict(RecordError):
    """Every try met another writer. The record is whole; what we wanted was not written."""

    def __init__(self, token: str, tries: int) -> None:
        self.token = token
        self.tries = tries
        super().__init__(f"record {token} changed under {tries} tries")


class IllegalTransition(RecordError):
    """``event`` may not happen to a record in ``phase``; ``why`` says what stands against it."""

    def __init__(self, phase: str, event: str, why: str) -> None:
        self.phase = phase
        self.event = event
        self.why = why
        super().__init__(f"{event} in {phase}: {why}")


class PortError(RecordError):
    """Base of what a :class:`records.ports.ConfigMapsPort` raises for the store to act upon."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)


class NameTaken(PortError):
    """A create found an object of that name; whose it is has to be looked at."""


class Stale(PortError):
    """Another write came first. Nothing was done; the same request may succeed after a new read."""


class NotThere(PortError):
    """The object to replace is gone."""


class OutcomeUnknown(PortError):
    """The answer was lost. Only a read tells whether the write was carried out."""
