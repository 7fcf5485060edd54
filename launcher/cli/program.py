"""What a command needs of the world, handed in, so that tests run it over a fake. Imports nothing heavy."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from launcher.settings import Settings


def _app(name: str) -> Callable[..., Any]:
    """Return a function of the composition root, imported when it is called: the Kubernetes client takes 0.6 s."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module("launcher.app"), name)(*args, **kwargs)

    return call


def _leave(code: int) -> NoReturn:
    """End this process as a crash would: every step of a run survives that, and nothing is cancelled on the way out."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass(frozen=True)
class Program:
    """The command's surroundings. ``open_launcher`` and ``open_cluster`` are async context managers over settings."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    open_launcher: Callable[..., AbstractAsyncContextManager[Any]] = field(
        default_factory=lambda: _app("open_launcher")
    )
    open_cluster: Callable[..., AbstractAsyncContextManager[Any]] = field(default_factory=lambda: _app("open_cluster"))
    leave: Callable[[int], NoReturn] = _leave


@dataclass(frozen=True)
class Invocation:
    """One call of one command: its common options and surroundings."""

    program: Program
    json: bool
    config: Path | None
    flags: Mapping[str, str]

    def settings(self, **overrides: str) -> "Settings":
        """Read the settings; ``overrides`` stand for flags. Raises PodgateError ``setting_invalid``."""
        sources = importlib.import_module("launcher.settings_sources")
        loaded: Settings = sources.load_settings(
            self.program.environ, config=self.config, flags={**self.flags, **overrides}
        )
        return loaded
