"""Sits still beside the worker, so that results can be collected after the worker's end.

Ends with 0 at SIGTERM, at once.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # no stub in typeshed; signal itself imports enum: slow
import os


def stop(_number: int, _frame: object) -> None:
    """End; there is nothing to put in order."""
    os._exit(0)


def main() -> None:
    """Wait for a signal. As process 1 it lets the kernel reap what execs leave behind."""
    _signal.signal(_signal.SIGTERM, stop)
    _signal.signal(_signal.SIGINT, stop)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
    while True:
        _signal.pause()


if __name__ == "__main__":
    main()
