"""What all tests share."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Coroutines run on plain asyncio, as in production."""
    return "asyncio"
