"""A launcher's whole process that makes two runs and says by how much the second made it grow.

``measured_run.py FIRST_SPEC SECOND_SPEC INTO`` with settings from the environment: each spec is launched, awaited,
collected, brought back below INTO and removed. The first, a tiny one, is the baseline: it imports everything and fills
every cache. One JSON object on stdout.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.memory import reset_peak, resident_mib
from launcher import logs
from launcher.app import open_launcher
from launcher.settings_sources import load_settings


async def whole_run(launcher: Any, spec: dict[str, Any], into: Path) -> dict[str, Any]:
    """Make a run and bring everything back."""
    handle = await launcher.launch(spec)
    async for _ in launcher.watch(handle):
        pass
    result = await launcher.collect(handle)
    back = await launcher.materialize_workspace(handle, into)
    await launcher.remove(handle)
    return {"result": result.result, "entries": back.entries, "bytes": back.bytes}


async def measured(first: dict[str, Any], second: dict[str, Any], into: Path) -> dict[str, Any]:
    """Make both runs; ``grown`` is the peak during the second above what was resident before it, in MiB."""
    async with open_launcher(load_settings(os.environ)) as launcher:
        await whole_run(launcher, first, into / "first")
        reset_peak()
        before = resident_mib("VmRSS")
        said = await whole_run(launcher, second, into / "second")
        return said | {"grown": resident_mib("VmHWM") - before}


if __name__ == "__main__":
    logs.configure()
    specs = [json.loads(Path(path).read_text()) for path in sys.argv[1:3]]
    print(json.dumps(asyncio.run(measured(specs[0], specs[1], Path(sys.argv[3])))))  # noqa: T201 - a program's answer
