"""Samples become figures: what each line is called, and which goal it has."""

from collections.abc import Sequence

from benchmarks.figures import Figure, figure, ratios
from benchmarks.launches import Launched
from benchmarks.transfers import Rates
from launcher.progress import STAGES

LARGE_MIB = 500
SMALL_COUNT = 20_000

MORE_SECONDS = 3.5
PROOF_SECONDS = 2.0
LARGE_RATIO = 1.0
SMALL_RATIO = 0.5
MEMORY_MIB = 32.0
HELP_SECONDS = 0.25


def of_launches(bare: Sequence[float], proven: Sequence[Launched]) -> list[Figure]:
    """Return both ways up, the stages, the difference pair by pair, and the proof's own time."""
    more = [mine.up - other for mine, other in zip(proven, bare, strict=True)]
    proofs = [each.proof_after_first_good for each in proven]
    return [
        figure("bare pod: request → its process", "s", bare),
        figure("launch(): call → worker's process", "s", [each.up for each in proven]),
        *_stages(proven),
        figure("launch() above the bare pod", "s", more, ("at most", MORE_SECONDS)),
        figure("proof stands after the first good round", "s", proofs, ("at most", PROOF_SECONDS)),
    ]


def _stages(proven: Sequence[Launched]) -> list[Figure]:
    """``n`` is smaller where an observer's look passed over a stage."""
    seen = ((stage, [each.stages[stage] for each in proven if stage in each.stages]) for stage in STAGES)
    return [figure(f"  … {stage}", "s", samples) for stage, samples in seen if samples]


def of_large(rates: Rates) -> list[Figure]:
    """Return the figures of one large file, in MB/s (10^6 bytes)."""
    megabytes = LARGE_MIB * (1 << 20) / 1e6
    return _of_transfers(f"1 x {LARGE_MIB} MiB", rates, megabytes, "MB/s", LARGE_RATIO)


def of_small(rates: Rates) -> list[Figure]:
    """Return the figures of many small files, in MB/s of content (10^6 bytes)."""
    return _of_transfers(f"{SMALL_COUNT:,} x 1 KiB", rates, SMALL_COUNT * 1024 / 1e6, "MB/s", SMALL_RATIO)


def _of_transfers(what: str, rates: Rates, amount: float, unit: str, goal: float) -> list[Figure]:
    verbs = (
        ("seed", rates.seed, rates.seed_tar, rates.seed_memory),
        ("collect", rates.collect, rates.collect_tar, rates.collect_memory),
    )
    figures = []
    for verb, ours, theirs, memory in verbs:
        figures += [
            figure(f"{verb} {what}", unit, [amount / seconds for seconds in ours]),
            figure("  … kubectl exec -i -- tar", unit, [amount / seconds for seconds in theirs]),
            figure("  … ratio", "x", ratios(theirs, ours), ("at least", goal)),
            figure("  … peak of memory above the start", "MiB", memory, ("at most", MEMORY_MIB)),
        ]
    return figures


def of_help(samples: Sequence[float]) -> Figure:
    """Return the command's own start."""
    return figure("podgate --help", "s", samples, ("at most", HELP_SECONDS))
