"""A pod's storage in a temporary directory, and values that the tests of transfers share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from isolation.options import IsolationOptions
from isolation.spec import JobSpec
from launcher.settings import Settings
from launcher.testing.local_exec import LocalPod

DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def pod(tmp_path: Path) -> LocalPod:
    """An empty pod."""
    storage = tmp_path / "storage"
    storage.mkdir()
    return LocalPod(storage)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small workspace with every kind of entry that may be seeded."""
    root = tmp_path / "source"
    (root / "package" / "empty").mkdir(parents=True)
    (root / "package" / "main.py").write_text("print('hi')\n")
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o700)
    (root / "latest").symlink_to("package/main.py")
    return root


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose workspace root is the test's directory."""
    return Settings(isolation=IsolationOptions(trusted_image="r/i@" + DIGEST), workspace_root=tmp_path)


@pytest.fixture
def spec() -> Callable[..., JobSpec]:
    """Make a spec with what matters to a transfer."""
    return lambda **fields: JobSpec(run_id="run", image="r/i@" + DIGEST, **{"disk_mb": 64, **fields})
