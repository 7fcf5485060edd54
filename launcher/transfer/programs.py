"""How an in-pod program is run by exec: its text as an argument, its config as one JSON object."""

from collections.abc import Mapping
from typing import Any

from isolation.digest import canonical_json
from isolation.inpod import ProgramName, source

STORAGE = "/run/podgate"
"""Where gate and keeper mount the run's storage."""
CURRENT = f"{STORAGE}/current"


def argv(program: ProgramName, config: Mapping[str, Any]) -> list[str]:
    """Return the argument vector. ``-I -S``: nothing of the environment, and no site packages to search at start."""
    return ["python3", "-I", "-S", "-c", source(program), canonical_json(dict(config)).decode("utf-8")]
