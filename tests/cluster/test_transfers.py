"""What goes in and comes back: large and many, in any modes, over connections that break, and from hostile hands."""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cutting_proxy import CuttingProxy, kubeconfig_through, running, server_of
from podgate_cli import Done, Place, Podgate
from tree_digest import digest
from worker_programs import CHANGE_EVERYTHING, DIGEST, HOSTILE, LEAVE_HOSTILE, LEAVE_MODES

from benchmarks.transfers import large_file, small_files
from isolation import names
from launcher.errors import PodgateError
from launcher.workspace import materialize

pytestmark = pytest.mark.cluster

GROWTH_MIB = 32
"""How much the launcher's process may grow while it moves anything, of any size."""

MIB = 1 << 20

Make = Callable[[Path], Path]


def write_spec(root: Path, podgate: Podgate, name: str, program: str, *, disk_mb: int = 64, cpus: float = 0.3) -> Path:
    """Write a spec for a Python program over the workspace ``root/name``; returns its path."""
    spec = {
        "runId": podgate.run_id(),
        "image": podgate.image("python"),
        "command": ["python3", "-c", program],
        "cpus": cpus,
        "memoryMb": 128,
        "diskMb": disk_mb,
        "workspace": name,
    }
    path = root / f"{name}.json"
    path.write_text(json.dumps(spec))
    return path


def run_id_of(spec: Path) -> str:
    return json.loads(spec.read_text())["runId"]


# --- large and many ---


@pytest.mark.parametrize(
    ("make", "entries", "disk_mb"),
    [
        pytest.param(lambda top: large_file(top, 50), 1, 128, id="50 MB"),
        pytest.param(lambda top: small_files(top, 2000), 2020, 128, id="2,000 files"),
        pytest.param(lambda top: large_file(top, 500), 1, 640, id="500 MB", marks=pytest.mark.slow),
        pytest.param(lambda top: small_files(top, 20_000), 20_200, 256, id="20,000 files", marks=pytest.mark.slow),
    ],
)
def test_all_of_it_goes_in_and_comes_back_changed_in_bounded_memory(
    podgate: Podgate, root: Path, make: Make, entries: int, disk_mb: int
) -> None:
    source = make(root / "source")
    (root / "tiny").mkdir()
    tiny = write_spec(root, podgate, "tiny", DIGEST)
    spec = write_spec(root, podgate, "source", CHANGE_EVERYTHING, disk_mb=disk_mb)

    said = measured(podgate, tiny, spec, root / "back")

    assert said["result"]["before"] == digest(source), "the worker saw what was sent"
    assert said["result"]["after"] == digest(root / "back" / "second") != digest(source)
    assert said["entries"] == entries
    assert said["grown"] <= GROWTH_MIB


def measured(podgate: Podgate, first: Path, second: Path, into: Path) -> dict[str, Any]:
    """Make two runs in one fresh process, and return what it says about the second."""
    program = Path(__file__).with_name("measured_run.py")
    process = podgate.program(program, str(first), str(second), str(into))
    done = podgate.end(process, seconds=500)
    assert done.code == 0, done.err
    return done.json


# --- modes ---


def test_what_a_worker_shut_away_comes_back_in_modes_that_can_be_read(podgate: Podgate, root: Path) -> None:
    (root / "source").mkdir()
    spec, back = write_spec(root, podgate, "source", LEAVE_MODES), root / "back"

    done = podgate("run", "--json", str(spec), "--into", str(back))

    assert done.code == 0, done.err
    named = {"none": 0o644, "own": 0o644, "write-only": 0o644, "run-only": 0o755, "setuid": 0o755}
    for above in (back, back / "shut", back / "shut" / "inner"):
        found = {name: ((above / name).read_text(), stat.S_IMODE((above / name).stat().st_mode)) for name in named}
        assert found == {name: (name, mode) for name, mode in named.items()}
        assert stat.S_IMODE(above.stat().st_mode) == 0o755
    assert (back / "hard").read_text() == "own"
    assert (os.readlink(back / "link"), os.readlink(back / "dangling")) == ("shut/inner/none", "nowhere")
    assert list((back / "empty").iterdir()) == []


# --- connections that break ---

SIZE = 24 * MIB
ALWAYS = 99


@contextmanager
def through(podgate: Podgate, root: Path, proxy: CuttingProxy) -> Iterator[Podgate]:
    """Yield the same command, with the API server behind the proxy, and impatient with silence."""
    with running(proxy):
        copy = kubeconfig_through(proxy, podgate.place.kubeconfig, root / "proxied.kubeconfig")
        yield podgate.set(transfer_idle_seconds=3).at(copy)


def sent(root: Path) -> str:
    """Make the workspace that is to be sent, a large file among small ones, and return its digest."""
    source = small_files(root / "source", 50)
    (source / "large").write_bytes(hashlib.shake_128(b"large").digest(SIZE))
    return digest(source)


@pytest.mark.parametrize(
    ("manner", "after"),
    [
        pytest.param("reset", SIZE // 2, id="reset in the middle"),
        pytest.param("closed", SIZE // 3, id="closed in the middle"),
        pytest.param("stalled", SIZE // 2, id="silent in the middle"),
        pytest.param("reset", SIZE, id="reset right before the end"),
    ],
)
def test_a_transfer_cut_once_starts_again_and_is_whole(
    podgate: Podgate, place: Place, root: Path, manner: Any, after: int
) -> None:
    whole, back = sent(root), root / "back"
    spec = write_spec(root, podgate, "source", DIGEST)

    out = CuttingProxy(server_of(place.kubeconfig), "out", after, times=1, manner=manner)
    with through(podgate, root, out) as cut:
        launched = cut("launch", str(spec))
    assert (launched.code, out.cut) == (0, 1), launched.err
    assert podgate("watch", "--run-id", run_id_of(spec)).code == 0

    inward = CuttingProxy(server_of(place.kubeconfig), "in", after, times=1, manner=manner)
    with through(podgate, root, inward) as cut:
        collected = cut("collect", "--json", "--run-id", run_id_of(spec), "--into", str(back))
    assert (collected.code, inward.cut) == (0, 1), collected.err
    assert collected.json["result"] == {"before": whole}, "nothing of the first try was in the worker's tree"
    assert digest(back) == whole


def test_a_seed_that_is_cut_again_and_again_fails_by_name_and_starts_no_worker(
    podgate: Podgate, place: Place, root: Path
) -> None:
    sent(root)
    spec = write_spec(root, podgate, "source", DIGEST)
    proxy = CuttingProxy(server_of(place.kubeconfig), "out", SIZE // 2, times=ALWAYS)

    with through(podgate, root, proxy) as cut:
        launched = cut("launch", "--json", str(spec))

    assert (launched.code, launched.error["code"]) == (125, "seed_failed"), launched.err
    assert proxy.cut == 3, "tried three times in all"
    assert place.phase(run_id_of(spec)) == "failed"
    assert not place.worker_was_begun(run_id_of(spec))


def test_a_workspace_that_is_cut_again_and_again_fails_by_name_and_leaves_the_destination(
    podgate: Podgate, place: Place, root: Path
) -> None:
    sent(root)
    spec, back = write_spec(root, podgate, "source", DIGEST), destination(root)
    before = state_of(back)
    assert podgate("run", "--keep", str(spec)).code == 0
    proxy = CuttingProxy(server_of(place.kubeconfig), "in", SIZE // 2, times=ALWAYS)

    with through(podgate, root, proxy) as cut:
        collected = cut("collect", "--json", "--run-id", run_id_of(spec), "--into", str(back))

    assert (collected.code, collected.error["code"]) == (125, "collect_failed"), collected.err
    assert proxy.cut == 3
    assert state_of(back) == before


def destination(root: Path) -> Path:
    """Make a destination that holds something already, in a directory of its own."""
    back = root / "beside" / "back"
    (back / "held").mkdir(parents=True)
    (back / "held" / "file").write_text("was here before")
    return back


def state_of(back: Path) -> tuple[str, int, list[str]]:
    """What must not change: the tree, the very directory, and that nothing lies beside it."""
    return digest(back), back.stat().st_ino, sorted(path.name for path in back.parent.iterdir())


# --- hostile hands ---


@pytest.mark.anyio
async def test_whatever_hostile_a_worker_leaves_is_refused_by_name_and_the_destination_stays(
    podgate: Podgate, place: Place, root: Path
) -> None:
    (root / "source").mkdir()
    spec, back = write_spec(root, podgate, "source", LEAVE_HOSTILE), destination(root)
    before = state_of(back)
    run_id = run_id_of(spec)

    done: Done = podgate("run", "--keep", "--json", str(spec), "--into", str(back))
    assert (done.code, done.error["code"][:8]) == (125, "extract_"), done.err
    assert state_of(back) == before

    assert await refusals(place, run_id, back, before) == {name: code for name, (code, _) in HOSTILE.items()}

    await bring_back(place, run_id, back, but=set(HOSTILE))
    assert [path.name for path in back.iterdir()] == ["harmless"], "it was the hostile part that was refused"


async def refusals(place: Place, run_id: str, back: Path, before: Any) -> dict[str, str]:
    """Bring back each hostile part without the others, and return how it is refused."""
    codes = {}
    for hostile in HOSTILE:
        with pytest.raises(PodgateError) as refused:
            await bring_back(place, run_id, back, but=set(HOSTILE) - {hostile})
        codes[hostile] = refused.value.code
        assert state_of(back) == before, hostile
    return codes


async def bring_back(place: Place, run_id: str, back: Path, *, but: set[str]) -> None:
    """Bring a run's workspace back with the launcher's Role, leaving some directories out."""
    from launcher.cluster.connect import connect  # noqa: PLC0415 - the client takes 0.6 s to import

    pod = names.run_name(names.token(run_id))
    async with connect(kubeconfig=place.kubeconfig) as cluster:
        await materialize(cluster, place.namespace, pod, back, disk_mb=64, exclude=sorted(but))
