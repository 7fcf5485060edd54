"""Records on a cluster: the store's four methods over our cluster port, and the store with the runs' own names."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from isolation import names
from launcher.cluster.errors import AlreadyExists, Conflict, NotFound, Unreachable
from launcher.cluster.port import ClusterPort, Json, Kind
from records.errors import NameTaken, NotThere, OutcomeUnknown, Stale
from records.ports import Naming
from records.store import RecordStore

NAMING = Naming(token_of=names.token, name_of=names.run_name)


def record_store(cluster: ClusterPort, namespace: str, *, sleep: Callable[[float], Awaitable[None]]) -> RecordStore:
    """Return the store of one namespace's records."""
    return RecordStore(ClusterConfigMaps(cluster, namespace), NAMING, sleep=sleep)


class ClusterConfigMaps:
    """ConfigMaps of one namespace behind :class:`records.ports.ConfigMapsPort`.

    Reads raise ClusterError as it comes. Of a write, what the store acts upon is told in its own words, the rest comes
    as it is.
    """

    def __init__(self, cluster: ClusterPort, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    async def get(self, name: str) -> Json | None:
        """Read one; None when it is absent."""
        return await self._cluster.get(Kind.CONFIG_MAP, self._namespace, name)

    async def create(self, body: Json) -> Json:
        """Create; a 409 that is not AlreadyExists (a quota's update race) created nothing and is Stale: try again."""
        with _told(str(body["metadata"]["name"])):
            return await self._cluster.create(Kind.CONFIG_MAP, self._namespace, body)

    async def replace(self, name: str, body: Json) -> Json:
        """Replace under the resourceVersion that ``body`` carries."""
        with _told(name, not_found=NotThere):
            return await self._cluster.replace(Kind.CONFIG_MAP, self._namespace, name, body)

    async def delete(self, name: str, *, uid: str) -> bool:
        """Delete by uid; False when it was absent."""
        with _told(name):
            return await self._cluster.delete(Kind.CONFIG_MAP, self._namespace, name, uid=uid)


@contextmanager
def _told(name: str, *, not_found: type[NotThere] | None = None) -> Iterator[None]:
    try:
        yield
    except AlreadyExists as error:
        raise NameTaken(name) from error
    except Conflict as error:
        raise Stale(name) from error
    except Unreachable as error:
        raise OutcomeUnknown(name) from error
    except NotFound as error:
        if not_found is None:
            raise
        raise not_found(name) from error
