"""Where it is measured: a namespace for the time being, and facts about cluster and machine."""

import json
import os
import platform
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.pipes import said
from isolation.objects.install import installation
from isolation.options import IsolationOptions

SECONDS = 120.0
"""Bounds each call of kubectl here; a namespace with a witness is ready, and is gone, in well under a minute."""

CLOCKS = "each process by its own, and this one's for the beginning; node and this machine are taken to agree"


def spare_namespace() -> str:
    """Return the name of a namespace that nobody has."""
    return f"podgate-bench-{secrets.token_hex(4)}"


@asynccontextmanager
async def installed(kubectl: Sequence[str], options: IsolationOptions) -> AsyncIterator[None]:
    """Install Podgate as ``podgate manifests`` says into a namespace of its own, and remove all of it in the end."""
    objects = {"apiVersion": "v1", "kind": "List", "items": list(installation(options))}
    place = ("-n", options.namespace)
    try:
        await said(*kubectl, "apply", "-f", "-", stdin=json.dumps(objects), seconds=SECONDS)
        witness = f"deployment/{options.witness}"
        await said(*kubectl, *place, "rollout", "status", witness, f"--timeout={SECONDS:g}s", seconds=SECONDS)
        yield
    finally:
        gone = ("delete", "namespace", options.namespace, "--ignore-not-found", f"--timeout={SECONDS:g}s")
        await said(*kubectl, *gone, seconds=SECONDS)


async def facts(kubectl: Sequence[str], options: IsolationOptions) -> dict[str, str]:
    """Return what figures depend on; what the cluster does not tell us is ``unknown``."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB, Linux {platform.release()}",
        "python": platform.python_version(),
        "cluster": await _nodes(kubectl),
        "witness": await _families(kubectl, options),
        "clock": CLOCKS,
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)


async def _nodes(kubectl: Sequence[str]) -> str:
    try:
        nodes = json.loads(await said(*kubectl, "get", "nodes", "-o", "json", seconds=SECONDS))["items"]
    except RuntimeError:  # a launcher's own account may not list nodes
        return "unknown"
    kinds = {
        (each["kubeletVersion"], each["containerRuntimeVersion"]) for each in (n["status"]["nodeInfo"] for n in nodes)
    }
    return f"{len(nodes)} node(s), " + "; ".join(
        f"kubelet {kubelet} on {runtime}" for kubelet, runtime in sorted(kinds)
    )


async def _families(kubectl: Sequence[str], options: IsolationOptions) -> str:
    path = "jsonpath={.spec.ipFamilies}"
    try:
        families = await said(
            *kubectl, "-n", options.namespace, "get", "service", options.witness, "-o", path, seconds=SECONDS
        )
    except RuntimeError:
        return "unknown"
    return " and ".join(json.loads(families or "[]")) or "unknown"


def command_line(interpreter: Path) -> list[str]:
    """Return how the command is called: the installed script beside the interpreter, or the module."""
    script = interpreter.parent / "podgate"
    return [str(script)] if script.exists() else [str(interpreter), "-m", "launcher"]
