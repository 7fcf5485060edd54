"""Every limit of a spec, once, with its reason."""

from dataclasses import dataclass
from decimal import Decimal

KIB = 1024


@dataclass(frozen=True)
class Range:
    """Both ends belong to it."""

    least: int
    most: int


MILLICORES = Range(100, 32_000)
"""Below 0.1 the runtime's own start is throttled for seconds; above 32 few nodes have room."""
CPUS = (Decimal("0.1"), Decimal(32))
MEMORY_MB = Range(128, 65_536)
"""MiB. The gate runs Python in the worker's limits, and the memory volumes take up to 128."""
DISK_MB = Range(64, 32_768)
"""MiB."""
TIMEOUT_SECONDS = Range(1, 86_400)
"""A day: the evidence and the node's logs are sized for it."""

RUN_ID_LENGTH = 200
"""Characters. It stands in an annotation and in an environment variable."""
REPOSITORY_LENGTH = 255
"""Characters; what registries themselves allow."""

WORDS = 256
"""Items of command, and of args."""
WORDS_BYTES = 128 * KIB
"""UTF-8 bytes of command, and of args: one argument may not be longer in Linux (MAX_ARG_STRLEN)."""

ENV_ENTRIES = 64
ENV_BYTES = 32 * KIB
"""UTF-8 bytes of names and values together."""
ENV_NAME_LENGTH = 253
ENV_RESERVED = ("PODGATE_", "KUBERNETES_", "LD_")
"""Prefixes: our own words, what service links would set, and what would make the dynamic linker load other code."""

EXCLUDES = 64
EXCLUDES_BYTES = 16 * KIB
"""The record carries them, and must stay below 256 KiB in all."""
LABELS = 64
LABELS_BYTES = 16 * KIB
"""Likewise."""
LABEL_NAME_LENGTH = 253
LABEL_VALUE_LENGTH = 1024

HOST_PATH_BYTES = 4096
"""PATH_MAX."""
NAME_LENGTH = 63
"""Egress profiles: their names are DNS labels."""
CAPABILITY_NAME_LENGTH = 200
CAPABILITY_VALUE = Range(16, 512)
"""Characters. Shorter ones can be guessed; longer ones are documents, not capabilities."""
INPUT_BYTES = 512 * KIB
RESULT_BYTES = 64 * KIB
"""What a record can hold beside everything else."""
