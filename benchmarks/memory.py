"""Resident memory of this process: how far its peak rises above where it began."""

from pathlib import Path


def reset_peak() -> None:
    """Begin a new peak at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def resident_mib(field: str) -> float:
    """Return ``VmRSS`` (now) or ``VmHWM`` (peak) in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"the kernel does not say {field}")
