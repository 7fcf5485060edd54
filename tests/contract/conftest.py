"""Each test of the port's contract runs on the fake cluster and on a real one: a difference is a bug of the fake."""

from collections.abc import AsyncIterator

import pytest
from worlds import FakeWorld, RealWorld, World

from launcher.testing.fake_cluster import FakeCluster


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
async def world(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[World]:
    """A cluster with a namespace for this test."""
    if request.param == "fake":
        yield FakeWorld(FakeCluster(namespaces=("contract",)), "contract")
        return
    from launcher.cluster.connect import connect  # noqa: PLC0415 - the client takes 0.6 s to import

    bed = request.getfixturevalue("bed")
    with bed.namespace("contract") as namespace:
        async with connect(kubeconfig=bed.kubeconfig) as cluster:
            yield RealWorld(cluster, namespace, bed.images["python"])
