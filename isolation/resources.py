"""How much each container gets, in one place, with the reasons.

Limits equal requests everywhere, so that a run gets what it was promised and a quota on limits is satisfied.

Disk is accounted twice by the kubelet: a container's own logs (root file systems are read-only) against the container's
limit, and logs and volumes together against the sum of the limits. The storage volume's share is put on the keeper,
which writes nothing else: then each log is held to its container's own limit, the volume to its sizeLimit, and the sum,
being larger than all of them, never evicts a pod before one of these has spoken.
"""

from dataclasses import dataclass

from isolation.spec import JobSpec


@dataclass(frozen=True)
class Share:
    """What one container gets: thousandths of a processor, MiB of memory, MiB of local disk."""

    millicores: int
    memory_mib: int
    disk_mib: int


@dataclass(frozen=True)
class Shares:
    """What each container of a run's pod gets."""

    prover: Share
    gate: Share
    keeper: Share
    worker: Share

    @property
    def disk_mib(self) -> int:
        """MiB of local disk that the pod may use in all, as the scheduler and the kubelet count it."""
        beside = self.prover.disk_mib
        return beside + max(self.gate.disk_mib, self.keeper.disk_mib + self.worker.disk_mib)


PROVER = Share(100, 64, 64)
"""At less than 100m Python starts too slowly for a proof. 64 MiB holds an interpreter and a few dozen sockets. Its log
is a line of some hundred bytes per round, at worst four a second, and is rotated by the kubelet at 10 MiB.
"""

KEEPER_MILLICORES = 150
"""The least at which a workspace comes back as fast as ``tar`` in the same container would bring it: the sender hashes
what it reads, which is half of its work. Measured with one file of 200 MB, medians beside ``kubectl exec -i -- tar`` in
turn: 32 of 50 MB/s at 50m (0.65), 62 of 77 at 100m (0.80), 0.97 at 125m, 1.13 and 1.08 at 150m, 1.18 at 200m. It is
reserved for every run, so it is no more than that. At 10m the runtime's own start in the container is throttled by two
seconds, and the worker waits for it.
"""
KEEPER_MEMORY_MIB = 128
"""The sender of the results runs here: an interpreter, an index of 100,000 entries, and a few MiB of buffers."""
KEEPER_LOG_MIB = 64

WORKER_LOG_MIB = 128
"""The kubelet looks every ten seconds and rotates at 10 MiB: a burst between two looks must fit. A worker that logs
faster than that is evicted by its own limit.
"""

MEMORY_VOLUME_MIB = (16, 64)
"""Least and most of /tmp and of home. They count against the worker's memory."""
PROVER_VOLUME_MIB = 1
"""One small file: the latched verdict."""


def memory_volume_mib(memory_mb: int) -> int:
    """MiB of /tmp, and of home: an eighth of the worker's memory, within 16 and 64."""
    least, most = MEMORY_VOLUME_MIB
    return max(least, min(most, memory_mb // 8))


def shares(spec: JobSpec) -> Shares:
    """What the spec asks for, before the platform has its say.

    The gate has the worker's limits: an init container's cost nothing beside them, and the seed is extracted faster.
    """
    worker = Share(spec.millicores, spec.memory_mb, WORKER_LOG_MIB)
    keeper = Share(KEEPER_MILLICORES, KEEPER_MEMORY_MIB, KEEPER_LOG_MIB + spec.disk_mb)
    return Shares(prover=PROVER, gate=worker, keeper=keeper, worker=worker)
