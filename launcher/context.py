"""What every stage of one launcher works with. The composition root makes it; tests make it with fakes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from launcher.cluster.port import AdminPort
from launcher.settings import Settings
from records.store import RecordStore


@dataclass(frozen=True)
class Context:
    """One replica's tools.

    ``monotonic`` and ``sleep`` are seconds of one clock; ``holder`` names this replica in leases.
    """

    cluster: AdminPort
    store: RecordStore
    settings: Settings
    holder: str
    monotonic: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]

    @property
    def namespace(self) -> str:
        """The one namespace in which this launcher works."""
        return self.settings.isolation.namespace
