"""The command against a real cluster. A namespace serves all tests of one worker: its preflight is made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from bed import Bed
from podgate_cli import Place, Podgate, opened


@pytest.fixture(scope="session")
def place(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Podgate installed and its preflight done, and a kubeconfig with the launcher's Role and no other right."""
    with bed.installed() as options:
        kubeconfig = bed.account_kubeconfig(options.namespace, tmp_path_factory.mktemp("launcher"))
        place = Place(bed, options.namespace, kubeconfig)
        with opened(place, kubeconfig.parent) as podgate:
            preflight = podgate("preflight", "--json")
        assert preflight.code == 0, preflight.err or preflight.out
        yield place


@pytest.fixture
def podgate(place: Place, tmp_path: Path) -> Iterator[Podgate]:
    """The command, with a workspace root of the test's own."""
    root = tmp_path / "root"
    root.mkdir()
    with opened(place, root) as command:
        yield command


@pytest.fixture
def root(podgate: Podgate) -> Path:
    """Where specs may name workspaces."""
    return Path(podgate.environ["PODGATE_WORKSPACE_ROOT"])
