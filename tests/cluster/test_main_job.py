"""A real package's own test suite behind the gate, and the images and workspaces that are hard to serve."""

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from podgate_cli import SMALL, Place, Podgate

pytestmark = pytest.mark.cluster

PACKAGE = "idna==3.10"
SHA256 = "12f65c9b470abda6dc35cf8e63cc574b1c52b11df2c86030af0ac09b01b13ea9"
"""A source distribution of 190 KiB, with 6,256 tests that need the standard library alone. Its metadata is static, and
the digest is checked before anything of it is looked at."""

RUN_SUITE = """
import json, os, pathlib, sys, unittest
tests = unittest.defaultTestLoader.discover("tests", top_level_dir=".")
seen = unittest.TextTestRunner(stream=sys.stdout, verbosity=0).run(tests)
pathlib.Path("/run/job/output/result.json").write_text(json.dumps({
    "runId": os.environ["PODGATE_RUN_ID"], "uid": os.getuid(), "ran": seen.testsRun,
    "failed": len(seen.failures) + len(seen.errors),
}))
with open("HISTORY.rst", "a") as history:
    history.write("tested behind the gate\\n")
sys.exit(not seen.wasSuccessful())
"""

STAGES = ("created", "gate", "released", "started", "ended")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "requirements.txt").write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
    fetch = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "idna", "--dest", ".")
    subprocess.run([*fetch, "--requirement", "requirements.txt"], cwd=folder, check=True, timeout=300)
    with tarfile.open(folder / f"{PACKAGE.replace('==', '-')}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / PACKAGE.replace("==", "-")


def test_a_real_suite_runs_behind_the_gate_and_result_and_change_come_back(
    podgate: Podgate, place: Place, source: Path, tmp_path: Path
) -> None:
    run_id, into = podgate.run_id(), tmp_path / "back"
    size = ("--cpus", "0.5", "--memory-mb", "256", "--disk-mb", "64")
    where = ("--workspace", str(source), "--into", str(into))

    flags = ("--json", "--run-id", run_id, "--image", podgate.image("python"), *size, *where, "--require-result")
    done = podgate("run", *flags, "--", "python3", "-c", RUN_SUITE)

    assert done.code == 0, done.err
    assert "Ran 6256 tests" in done.err, "the worker's output goes to stderr"
    said = done.json
    timings, workspace = said.pop("timings"), said.pop("workspace")
    assert said == {
        "handle": podgate.handle(run_id),
        "state": "succeeded",
        "exitCode": 0,
        "reason": "completed",
        "diagnostic": None,
        "result": {"runId": run_id, "uid": 64001, "ran": 6256, "failed": 0},
    }
    assert workspace["path"] == str(into)
    assert set(workspace) == {"path", "entries", "bytes", "sha256", "excluded"}
    in_order(timings)
    before, after = contents(source), contents(into)
    changed = after.pop("HISTORY.rst") != before.pop("HISTORY.rst")
    assert (changed, after) == (True, before)
    assert (into / "HISTORY.rst").read_text().endswith("tested behind the gate\n")
    assert place.phase(run_id) == "removed"
    assert place.of_run(run_id) == set()


def test_an_image_without_a_shell_runs_its_own_entrypoint(podgate: Podgate) -> None:
    run_id = podgate.run_id()

    done = podgate("run", "--run-id", run_id, "--image", podgate.image("noshell"), *SMALL)

    assert (done.code, bool(done.out.strip())) == (0, True), done.err


def test_without_json_stdout_is_the_workers_output_byte_for_byte(podgate: Podgate) -> None:
    # Not among them: a carriage return right before a line feed, which the runtime itself keeps out of its logs.
    script = r"printf 'one\n\nt\two\033[0m\r.\n\303\244 tail without end'"

    done = podgate("run", *podgate.shell(podgate.run_id(), script))

    assert (done.code, done.out) == (0, "one\n\nt\two\033[0m\r.\nä tail without end"), done.err


def test_an_empty_workspace_is_a_workspace(podgate: Podgate, tmp_path: Path) -> None:
    empty, into = tmp_path / "empty", tmp_path / "back"
    empty.mkdir()
    script = 'test -z "$(ls -A)" && pwd && echo made > made'

    flags = ("--workspace", str(empty), "--into", str(into))
    done = podgate("run", *podgate.shell(podgate.run_id(), script, *flags))

    assert (done.code, done.out) == (0, "/workspace\n"), done.err
    assert contents(into).keys() == {"made"}
    assert list(empty.iterdir()) == []


def test_an_input_file_is_there_to_be_read_and_not_to_be_written(podgate: Podgate, tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    given.write_text('{"question": 42}')
    script = "cat /run/job/input/*; ! touch /run/job/input/more 2>/dev/null"

    done = podgate("run", *podgate.shell(podgate.run_id(), script, "--input", str(given)))

    assert (done.code, done.out) == (0, given.read_text()), done.err


def in_order(timings: dict[str, float]) -> None:
    """Hold that every stage was reached, none before the one that it depends on."""
    assert set(timings) == {*STAGES, "proven", "seeded"}
    assert all(isinstance(at, float) for at in timings.values())
    assert [timings[stage] for stage in STAGES] == sorted(timings[stage] for stage in STAGES)
    assert timings["gate"] <= min(timings["proven"], timings["seeded"])
    assert max(timings["proven"], timings["seeded"]) <= timings["released"]


def contents(folder: Path) -> dict[str, str]:
    """Return every file's digest by its path; what interpreters cache is not brought back."""
    found = {}
    for top, directories, files in os.walk(folder):
        directories[:] = [name for name in directories if name != "__pycache__"]
        for name in files:
            path = Path(top) / name
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
