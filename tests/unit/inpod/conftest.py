"""Programs end with their test, namespaces too."""

import os
import shutil
import uuid
from collections.abc import Iterator

import pytest
from inpod_lab import Lab, Programs


@pytest.fixture
def programs() -> Iterator[Programs]:
    started = Programs()
    yield started
    started.close()


@pytest.fixture
def lab(programs: Programs) -> Iterator[Lab]:
    missing = [tool for tool in ("ip", "nft") if not shutil.which(tool)]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"network namespaces need root and ip, nft (uid {os.geteuid()}, missing {missing})")
    made = Lab("pg" + uuid.uuid4().hex[:8])
    yield made
    programs.close()
    made.close()
