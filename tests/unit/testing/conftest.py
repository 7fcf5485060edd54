"""Fakes are tested in virtual time: what takes minutes in a cluster takes none here."""

import pytest

from launcher.testing.virtual_time import VirtualLoop


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Asyncio on a loop whose time jumps."""
    return "asyncio", {"loop_factory": VirtualLoop}
