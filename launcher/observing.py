"""What stages need of each other, as narrow as they need it."""

from typing import Protocol

from records.codec import Stored


class Observes(Protocol):
    """Looks at a run now, and writes down what is to be seen."""

    async def observe(self, token: str) -> Stored | None:
        """Return the record as it is after looking; None when there is none. A terminal record is not looked at."""


class Stops(Protocol):
    """Ends a run."""

    async def stop(self, token: str, reason: str | None = None) -> Stored:
        """Return the record as it is afterwards: terminal."""
