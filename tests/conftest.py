"""What all tests share."""

import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import structlog
from bed import Bed, BedMissing, find

from isolation.options import IsolationOptions
from launcher.cluster.port import AdminPort


@pytest.fixture
def anyio_backend() -> str:
    """Coroutines run on plain asyncio, as in production."""
    return "asyncio"


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A test that sets logging up (the command does) leaves its stream to nobody: pytest closes it afterwards."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture(scope="session")
def bed() -> Bed:
    """The test bed. Without one: a failure in CI, a skip elsewhere."""
    try:
        return find()
    except BedMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture
def namespace(bed: Bed) -> Iterator[str]:
    """A namespace for one test."""
    with bed.namespace() as name:
        yield name


@pytest.fixture(scope="module")
def installed(bed: Bed) -> Iterator[IsolationOptions]:
    """A namespace with Podgate installed, for the tests of one module."""
    with bed.installed() as options:
        yield options


@pytest.fixture
async def admin(bed: Bed) -> AsyncIterator[AdminPort]:
    """The cluster with an administrator's rights: for arranging and for looking, never for the launcher under test."""
    from launcher.cluster.connect import connect  # noqa: PLC0415 - the client takes 0.6 s to import, other tests need it not

    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(connect(kubeconfig=bed.kubeconfig))


@pytest.fixture
def launcher_kubeconfig(bed: Bed, installed: IsolationOptions, tmp_path: Path) -> Path:
    """A kubeconfig with the launcher's Role in ``installed``, and no other right."""
    return bed.account_kubeconfig(installed.namespace, tmp_path)
