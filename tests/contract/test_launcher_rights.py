"""The cluster tests' launcher has the launcher's Role and no other right."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from isolation.options import IsolationOptions
from launcher.cluster.errors import Refused
from launcher.cluster.port import AdminPort, Json, Kind

pytestmark = [pytest.mark.anyio, pytest.mark.cluster]


@pytest.fixture
async def launcher(launcher_kubeconfig: Path) -> AsyncIterator[AdminPort]:
    from launcher.cluster.connect import connect  # noqa: PLC0415 - the client takes 0.6 s to import

    async with connect(kubeconfig=launcher_kubeconfig) as cluster:
        yield cluster


def config_map(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": "1"}}


async def test_it_writes_records(launcher: AdminPort, installed: IsolationOptions) -> None:
    created = await launcher.create(Kind.CONFIG_MAP, installed.namespace, config_map("a"))
    await launcher.replace(Kind.CONFIG_MAP, installed.namespace, "a", {**created, "data": {"key": "2"}})
    stored = await launcher.get(Kind.CONFIG_MAP, installed.namespace, "a")
    assert stored is not None
    assert stored["data"] == {"key": "2"}


async def test_it_reads_no_secret_and_lists_no_pods(launcher: AdminPort, installed: IsolationOptions) -> None:
    with pytest.raises(Refused):
        await launcher.get(Kind.SECRET, installed.namespace, "any")
    with pytest.raises(Refused):
        await launcher.list(Kind.POD, installed.namespace)


async def test_it_deletes_neither_records_nor_policies(launcher: AdminPort, installed: IsolationOptions) -> None:
    for kind in (Kind.CONFIG_MAP, Kind.NETWORK_POLICY, Kind.SECRET):
        with pytest.raises(Refused):
            await launcher.delete(kind, installed.namespace, "any")


async def test_it_may_nothing_outside_its_namespace(launcher: AdminPort) -> None:
    with pytest.raises(Refused):
        await launcher.get(Kind.CONFIG_MAP, "default", "any")
    with pytest.raises(Refused):
        await launcher.get(Kind.NAMESPACE, None, "default")
