"""Everything about workspace and input is decided before anything is created."""

import os
import socket
from pathlib import Path

import pytest

from launcher.errors import PodgateError
from launcher.extract import rules
from launcher.seed import prepare
from launcher.transfer.scan import scan


@pytest.fixture
def refused(spec, settings):
    def refused(*, bound=True, **fields):
        with pytest.raises(PodgateError) as caught:
            prepare(spec(**fields), settings, bound_to_root=bound).close()
        return caught.value.code, caught.value.message

    return refused


@pytest.fixture
def directory(source):
    fd = os.open(source, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_seed_knows_its_exact_length_before_any_content_is_read(spec, settings, source):
    with prepare(spec(workspace=source), settings, bound_to_root=True) as prepared:
        archive = b"".join(prepared.source.pieces())
    assert prepared.archive_bytes == len(archive)
    assert prepared.entries == 5
    assert prepared.content_bytes == len("print('hi')\n") + len("#!/bin/sh\n")


def test_a_workspace_that_is_a_symbolic_link_is_refused(refused, source, tmp_path):
    (tmp_path / "link").symlink_to(source)
    assert refused(workspace=tmp_path / "link")[0] == "workspace_invalid"
    assert refused(workspace=tmp_path / "link", bound=False)[0] == "workspace_invalid"


def test_a_workspace_reached_through_a_link_below_the_root_is_refused(refused, source, tmp_path):
    (tmp_path / "link").symlink_to(source)
    assert refused(workspace=tmp_path / "link" / "package")[0] == "workspace_invalid"


def test_a_workspace_that_is_a_file_is_refused(refused, source):
    assert refused(workspace=source / "run.sh")[0] == "workspace_invalid"


def test_an_absent_workspace_is_refused(refused, tmp_path):
    code, message = refused(workspace=tmp_path / "nowhere")
    assert code == "workspace_invalid"
    assert "no such file" in message


def test_a_bound_workspace_must_lie_below_the_root(refused, tmp_path):
    assert refused(workspace=tmp_path.parent)[0] == "workspace_invalid"
    assert refused(workspace=tmp_path)[0] == "workspace_invalid"
    assert refused(workspace=Path("../elsewhere"))[0] == "workspace_invalid"


def test_a_relative_bound_workspace_starts_at_the_root(spec, settings, source):
    with prepare(spec(workspace=Path(source.name)), settings, bound_to_root=True) as prepared:
        assert prepared.entries == 5


def test_the_root_of_the_file_system_is_no_workspace(refused):
    assert refused(workspace=Path("/"), bound=False)[0] == "workspace_invalid"


def test_the_root_of_the_file_system_is_no_workspace_root(spec, settings, source):
    everything = settings.model_copy(update={"workspace_root": Path("/")})
    with pytest.raises(PodgateError) as caught:
        prepare(spec(workspace=source), everything, bound_to_root=True)
    assert caught.value.code == "workspace_invalid"


def test_without_a_workspace_root_a_bound_spec_may_name_no_path(spec, settings, source):
    none = settings.model_copy(update={"workspace_root": None})
    with pytest.raises(PodgateError) as caught:
        prepare(spec(workspace=source), none, bound_to_root=True)
    assert "PODGATE_WORKSPACE_ROOT" in caught.value.message


def test_a_workspace_larger_than_the_disk_is_refused_without_reading_it(refused, source):
    with (source / "big").open("wb") as file:
        file.truncate(65 << 20)
    assert refused(workspace=source)[0] == "workspace_too_large"


def test_small_files_count_as_the_blocks_they_take(directory, source):
    for number in range(20):
        (source / f"small{number}").write_bytes(b"x")
    with pytest.raises(PodgateError, match="diskMb"):
        scan(directory, disk_bytes=80 << 10)


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "package/../../outside", "latest/../../../x"])
def test_a_link_that_leads_outside_is_refused_by_name(refused, source, target):
    (source / "escape").symlink_to(target)
    code, message = refused(workspace=source)
    assert code == "workspace_invalid"
    assert "'escape'" in message


def test_a_link_that_escapes_through_another_link_is_refused(refused, source):
    (source / "package" / "up").symlink_to("..")
    (source / "sly").symlink_to("package/up/../x")
    assert refused(workspace=source)[0] == "workspace_invalid"


def test_a_link_to_itself_is_refused(refused, source):
    (source / "loop").symlink_to("loop")
    assert "40 links" in refused(workspace=source)[1]


def test_a_dangling_link_inside_is_taken(spec, settings, source):
    (source / "dangling").symlink_to("package/later")
    prepare(spec(workspace=source), settings, bound_to_root=True).close()


def test_a_fifo_is_refused_by_name_and_does_not_block(refused, source):
    os.mkfifo(source / "pipe")
    assert refused(workspace=source) == ("workspace_invalid", "a device, fifo or socket: 'pipe'")


def test_a_socket_is_refused_by_name(refused, source):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
        assert "'socket'" in refused(workspace=source)[1]


def test_a_name_that_is_not_utf_8_is_refused(refused, source):
    (source / os.fsdecode(b"caf\xe9")).write_text("")
    assert refused(workspace=source)[1] == r"a name that is not UTF-8: 'caf\\xe9'"


def test_names_that_differ_only_in_case_are_refused_as_they_could_not_come_back(refused, source):
    (source / "RUN.sh").write_text("")
    assert "differ only in case" in refused(workspace=source)[1]


def test_a_path_too_deep_is_refused(refused, source):
    (source / "/".join(["d"] * (rules.DEPTH + 1))).mkdir(parents=True)
    assert "deeper" in refused(workspace=source)[1]


def test_too_many_entries_are_refused(directory):
    with pytest.raises(PodgateError, match="more than 4 entries"):
        scan(directory, disk_bytes=1 << 20, entry_limit=4)


def test_a_file_without_any_read_bit_is_refused_by_name(refused, source):
    (source / "secret").write_text("x")
    (source / "secret").chmod(0)
    assert refused(workspace=source) == ("workspace_unreadable", "no permission to read 'secret'")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[NaN]", b"[" * 200_000])
def test_an_input_that_is_not_json_is_refused(refused, tmp_path, content):
    (tmp_path / "input.json").write_bytes(content)
    assert refused(input=tmp_path / "input.json") == ("input_invalid", "the input is not JSON in UTF-8")


def test_an_input_of_512_kib_is_taken_and_one_byte_more_refused(refused, spec, settings, tmp_path):
    body = b'"' + b"x" * ((512 << 10) - 2) + b'"'
    (tmp_path / "input.json").write_bytes(body)
    with prepare(spec(input=tmp_path / "input.json"), settings, bound_to_root=True) as prepared:
        assert prepared.content_bytes == 512 << 10
    (tmp_path / "input.json").write_bytes(body + b"\n")
    assert refused(input=tmp_path / "input.json")[0] == "input_invalid"


def test_an_input_that_is_no_regular_file_is_refused(refused, source, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("input.json")
    for place in (tmp_path / "pipe", tmp_path / "link", source, tmp_path / "nowhere"):
        assert refused(input=place)[0] == "input_invalid"
