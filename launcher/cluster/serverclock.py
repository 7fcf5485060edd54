"""The API server's clock, read off the Date header of its answers and carried on by the monotonic clock."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

DATE_RESOLUTION = 1.0
"""Seconds. A Date header is the server's time cut to the second."""

DRIFT = 1e-4
"""Seconds by which two clocks may part in a second (100 ppm: worse than any quartz that NTP still steers)."""


class ServerClock:
    """Narrows down the server's clock with every answer.

    An answer that was asked for at ``sent`` and had come by ``received`` (both monotonic seconds) was dated somewhere
    in between, and the true time lies in the second that its Date header begins. Each answer so gives an interval for
    the difference of the two clocks; the intersection of the intervals is soon much narrower than a second. An
    interval that does not meet the earlier ones means that the server's clock was set (or another server answered):
    the newest one counts alone.

    Before the first answer this machine's own clock is all there is.
    """

    def __init__(
        self, monotonic: Callable[[], float], wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._low = 0.0
        self._high = 0.0
        self._observed_at: float | None = None
        self._last = float("-inf")

    def observe(self, date: str | None, *, sent: float, received: float) -> None:
        """Take one answer's Date header into account; a missing or malformed one changes nothing."""
        seconds = _parse(date)
        if seconds is None:
            return
        low, high = seconds - received, seconds + DATE_RESOLUTION - sent
        if self._observed_at is not None:
            slack = DRIFT * max(0.0, received - self._observed_at)
            met_low, met_high = max(low, self._low - slack), min(high, self._high + slack)
            if met_low <= met_high:
                low, high = met_low, met_high
            else:
                self._last = float("-inf")
        self._low, self._high, self._observed_at = low, high, received

    def now(self) -> datetime:
        """Return the best estimate, in UTC. It never goes back, unless the server's clock was set back."""
        if self._observed_at is None:
            return self._wall()
        self._last = max(self._last, self._monotonic() + (self._low + self._high) / 2)
        return datetime.fromtimestamp(0, UTC) + timedelta(seconds=self._last)


def _parse(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None
