"""Part: one thread that waits for sockets and times; the prover's rounds and its port live in it side by side."""

from __future__ import annotations

import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

READ = select.POLLIN
WRITE = select.POLLOUT


class Loop:
    """Callbacks for ready descriptors and for times (seconds of the monotonic clock).

    In one turn what has happened on sockets is told before any time is: a late process must not mistake its own
    lateness for silence. A callback may be told of a socket that is not ready (the number was used again within the
    turn), so it has to look for itself.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._ready: dict[int, Callable[[], None]] = {}
        self._times: dict[int, tuple[float, Callable[[], None]]] = {}
        self._last = 0

    def watch(self, descriptor: int, events: int, call: Callable[[], None]) -> None:
        """Call whenever the descriptor is ready (or broken), until ``forget``; watching again replaces."""
        self._poll.register(descriptor, events)
        self._ready[descriptor] = call

    def forget(self, descriptor: int) -> None:
        """Stop watching; to be called before the descriptor is closed."""
        if self._ready.pop(descriptor, None):
            self._poll.unregister(descriptor)

    def at(self, when: float, call: Callable[[], None]) -> int:
        """Call once at or after a time; the number returned cancels it."""
        self._last += 1
        self._times[self._last] = (when, call)
        return self._last

    def cancel(self, number: int) -> None:
        """Forget a time; one that has passed is no error."""
        self._times.pop(number, None)

    def turn(self, longest: float) -> None:
        """Wait for the next thing, at most ``longest`` seconds, and call what it concerns."""
        soonest = min((when for when, _ in self._times.values()), default=time.monotonic() + longest)
        wait = max(0.0, min(longest, soonest - time.monotonic()))
        for descriptor, _ in self._poll.poll(wait * 1000 + 0.5):
            call = self._ready.get(descriptor)
            if call:
                call()
        now = time.monotonic()
        for number in sorted(n for n, (when, _) in self._times.items() if when <= now):
            timed = self._times.pop(number, None)
            if timed:
                timed[1]()
