"""A crash at any step of a swap leaves the old or the new directory, whole; the next call heals."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from launcher.errors import PodgateError
from launcher.extract.swap import Place

CRASHING = textwrap.dedent("""
    import os, signal, sys
    from pathlib import Path
    from launcher.extract.swap import Place, exchange
    destination, step, way = sys.argv[1:]

    def checkpoint(name):
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    swapping = exchange if way == "exchange" else lambda *_: False
    place = Place(Path(destination), exchange=swapping, checkpoint=checkpoint)
    place.open()
    staging = place.stage()
    Path(destination).with_name(staging.name).joinpath("new").write_text("new")
    checkpoint("staged")
    place.swap(staging)
    checkpoint("swapped")
    place.discard(staging)
    checkpoint("discarded")
""")


@pytest.fixture
def destination(tmp_path):
    path = tmp_path / "work"
    path.mkdir()
    (path / "old").write_text("old")
    return path


@pytest.fixture
def place(destination):
    place = Place(destination)
    place.open()
    yield place
    place.close()


def crash(destination, step, way):
    done = subprocess.run([sys.executable, "-c", CRASHING, str(destination), step, way], check=False)
    assert done.returncode == -signal.SIGKILL


def heal(destination):
    place = Place(destination)
    place.open()
    place.close()


@pytest.mark.parametrize("way", ["exchange", "two steps"])
@pytest.mark.parametrize(
    ("step", "then"),
    [("staged", "old"), ("before", "old"), ("placed", "new"), ("swapped", "new"), ("discarded", "new")],
)
def test_a_crash_leaves_the_old_or_the_new_and_the_next_call_cleans_up(destination, step, then, way):
    crash(destination, step, way)
    assert os.listdir(destination) == [then]
    heal(destination)
    assert os.listdir(destination) == [then]
    assert os.listdir(destination.parent) == ["work"]


def test_a_crash_between_the_two_steps_is_healed_to_the_old_one(destination):
    crash(destination, "between", "two steps")
    assert not destination.exists()
    heal(destination)
    assert os.listdir(destination) == ["old"]
    assert os.listdir(destination.parent) == ["work"]


def test_a_crash_while_there_was_no_destination_leaves_none_or_the_new_one(tmp_path):
    crash(tmp_path / "fresh", "before", "exchange")
    assert not (tmp_path / "fresh").exists()
    crash(tmp_path / "fresh", "placed", "exchange")
    assert os.listdir(tmp_path / "fresh") == ["new"]
    heal(tmp_path / "fresh")
    assert os.listdir(tmp_path) == ["fresh"]


def test_healing_leaves_alone_what_another_call_is_filling(place, destination):
    staging = place.stage()
    heal(destination)
    assert (destination.parent / staging.name).is_dir()
    place.discard(staging)
    assert os.listdir(destination.parent) == ["work"]


def test_healing_touches_nothing_of_other_destinations(place, destination):
    other = Place(destination.with_name("other"))
    other.open()
    staging = other.stage()
    fcntl.flock(staging.fd, fcntl.LOCK_UN)
    place.heal()
    assert (destination.parent / staging.name).is_dir()
    other.discard(staging)
    other.close()


def test_a_failed_second_step_brings_the_old_one_back(destination):
    staged = []

    def sabotage(step):
        if step == "between":
            destination.with_name(staged[0].name).rmdir()

    place = Place(destination, exchange=lambda *_: False, checkpoint=sabotage)
    place.open()
    staged.append(place.stage())
    with pytest.raises(PodgateError, match="extract_io"):
        place.swap(staged[0])
    place.close()
    assert os.listdir(destination) == ["old"]
    assert os.listdir(destination.parent) == ["work"]


def test_what_is_still_staged_goes_with_the_place(place, destination):
    place.stage()
    place.close()
    assert os.listdir(destination.parent) == ["work"]


def test_an_error_of_the_exchange_changes_nothing(destination):
    def busy(*_):
        raise OSError(errno.EBUSY, "busy")

    place = Place(destination, exchange=busy)
    place.open()
    staging = place.stage()
    with pytest.raises(PodgateError, match="extract_io: the destination: Device or resource busy"):
        place.swap(staging)
    place.discard(staging)
    place.close()
    assert os.listdir(destination) == ["old"]
    assert os.listdir(destination.parent) == ["work"]


def test_a_link_that_took_the_destinations_place_meanwhile_is_not_replaced(place, destination):
    staging = place.stage()
    destination.rename(destination.with_name("moved"))
    destination.symlink_to("moved")
    with pytest.raises(PodgateError, match="workspace_invalid"):
        place.swap(staging)
    place.discard(staging)
    assert os.listdir(destination.parent / "moved") == ["old"]
    assert destination.is_symlink()


def test_a_directory_without_rights_is_still_removed(place, destination):
    (destination / "closed").mkdir()
    (destination / "closed" / "file").write_text("x")
    (destination / "closed").chmod(0)
    staging = place.stage()
    place.swap(staging)
    place.discard(staging)
    assert os.listdir(destination.parent) == ["work"]
