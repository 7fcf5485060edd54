"""Each rule of the strict extraction: what a hostile archive may not do, and that nothing outside is ever touched."""

import os
import resource
import stat
import tarfile

import pytest
from archives import END, directory, gnu_long_name, link, member, raw, read_back, whole


@pytest.fixture
def alone(root):
    """Check at the end that nothing was made beside the root."""
    yield
    assert os.listdir(root.parent) == ["root"]


pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize("step", [1, 7, 511, 512, 513, 1 << 20])
def test_a_good_archive_comes_out_whatever_the_pieces(extract, root, step):
    archive = whole(
        directory("a"),
        member("a/file", b"x" * 700),
        link("a/link", "file"),
        member("tool", b"", mode=0o755),
        directory("ö" * 60),
    )
    assert extract(archive, step=step) is None
    assert read_back(root) == {
        "a": ("directory", ""),
        "a/file": ("file", b"x" * 700),
        "a/link": ("link", "file"),
        "tool": ("file", b""),
        "ö" * 60: ("directory", ""),
    }


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../escape", "a/../../escape", "./a", "a//b", "a/./b", "a/..", "..", ".", "", "a/"]
)
def test_a_path_that_could_lead_elsewhere_is_refused(extract, name):
    assert extract(whole(directory("a"), member(name, b"x"))) == "extract_path_invalid"


def test_a_nul_in_a_long_path_is_refused(extract):
    assert extract(whole(member("x", pax={"path": "a\0b"}))) == "extract_path_invalid"


def test_a_name_that_is_not_utf_8_is_refused(extract):
    assert extract(whole(raw(b"caf\xe9"))) == "extract_path_invalid"


@pytest.mark.parametrize("name", ["n" * 256, "/".join(["d" * 200] * 21), "/".join(["d"] * 257)])
def test_a_name_too_long_or_too_deep_is_refused(extract, name):
    assert extract(whole(member(name))) == "extract_name_too_long"


def test_an_entry_without_its_directory_is_refused(extract):
    assert extract(whole(member("missing/file"))) == "extract_path_invalid"


@pytest.mark.parametrize(
    "members",
    [
        (member("a"), member("a")),
        (directory("a"), directory("a")),
        (link("a", "b"), member("a")),
        (member("a"), link("a", "b")),
        (directory("a"), link("a", "b")),
        (member("a"), member("A")),
        (directory("straße"), directory("STRASSE")),
        (member("e\u0301"), member("\u00e9")),
    ],
)
def test_a_second_entry_of_a_name_is_refused_also_in_other_case_or_composition(extract, members):
    assert extract(whole(*members)) == "extract_duplicate"


def test_a_file_under_a_file_is_refused(extract):
    assert extract(whole(member("a", b"x"), member("a/b"))) == "extract_duplicate"


def test_an_entry_beneath_a_link_is_refused(extract):
    assert extract(whole(directory("d"), link("l", "d"), member("l/x"))) == "extract_through_symlink"


def test_an_entry_beneath_a_link_of_other_case_is_refused(extract):
    assert extract(whole(directory("d"), link("l", "d"), member("L/x"))) == "extract_through_symlink"


@pytest.mark.parametrize(
    "kind", [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"S", b"Z"]
)
def test_special_entries_are_refused(extract, kind):
    assert extract(whole(member("a", kind=kind, target="b"))) == "extract_special"


def test_a_sparse_file_in_pax_clothes_is_refused(extract):
    assert extract(whole(member("a", pax={"GNU.sparse.major": "1"}))) == "extract_special"


def test_gnu_long_names_are_refused(extract):
    assert extract(whole(gnu_long_name("x" * 150))) == "extract_special"


@pytest.mark.parametrize(
    "members",
    [
        (link("l", "/etc"),),
        (link("l", ".."),),
        (link("l", "a/../.."),),
        (directory("d"), link("d/up", ".."), link("l", "d/up/../x")),
        (link("a", "b"), link("b", "../x")),
        (link("a", "a"),),
        (link("a", "b"), link("b", "a")),
        (link("l", ""),),
        (directory("p"), directory("p/q"), link("p/q/up", "../.."), link("l", "p/q/UP/../x")),
    ],
)
def test_a_link_that_does_not_resolve_inside_is_refused_and_no_link_is_made(extract, root, members):
    assert extract(whole(*members)) == "extract_symlink_escape"
    assert not [kind for kind, _ in read_back(root).values() if kind == "link"]


def test_forty_links_in_a_row_resolve_and_forty_one_do_not(extract, root):
    chain = [link(f"l{n}", f"l{n + 1}") for n in range(40)]
    assert extract(whole(*chain)) is None
    for name in os.listdir(root):
        (root / name).unlink()
    assert extract(whole(*chain, link("l40", "end"))) == "extract_symlink_escape"


def test_links_that_stay_inside_and_dangling_ones_are_made(extract, root):
    assert extract(whole(directory("d"), link("d/up", "../d/./x"), link("gone", "d/nothing"))) is None
    assert os.readlink(root / "gone") == "d/nothing"


def test_set_id_bits_and_the_umask_do_not_decide_modes(extract, root):
    old = os.umask(0o077)
    try:
        assert extract(whole(directory("d"), member("tool", mode=0o6711), member("file", mode=0o600))) is None
    finally:
        os.umask(old)
    modes = {name: stat.S_IMODE((root / name).stat().st_mode) for name in os.listdir(root)}
    assert modes == {"d": 0o755, "tool": 0o755, "file": 0o644}


def test_the_declared_size_counts_before_a_byte_of_it_came(extract):
    assert extract(raw(b"big", size=b"7" * 11)) == "extract_size_limit"
    assert extract(whole(member("a", b"x" * 600), member("b", b"x" * 600)), content_bytes=1000) == "extract_size_limit"


def test_a_pax_size_counts_like_any_other(extract):
    assert extract(whole(member("a", pax={"size": "99999999999"}))) == "extract_size_limit"


def test_a_link_or_directory_with_a_body_is_refused(extract):
    assert extract(whole(member("l", b"x" * 512, kind=tarfile.SYMTYPE, target="a"))) == "extract_size_limit"
    assert extract(whole(raw(b"d", flag=b"5", size=b"00000001000"))) == "extract_size_limit"


def test_more_entries_than_the_limit_are_refused(extract):
    assert extract(whole(*[member(f"a{n}") for n in range(3)]), entries=3) is None
    assert extract(whole(*[member(f"b{n}") for n in range(3)]), entries=2) == "extract_entry_limit"


def test_extended_headers_count_and_are_bounded(extract):
    assert extract(raw(b"x", flag=b"x", size=b"%011o" % (65 << 10))) == "collect_failed"
    long = "d" * 250 + "/" + "e" * 250
    many = whole(*[member(long) for _ in range(5)])
    assert extract(many, content_bytes=400) == "extract_size_limit"


@pytest.mark.parametrize("value", ["-1", "1e3", "9" * 30, "", " 5"])
def test_a_pax_size_that_is_no_plain_number_is_refused(extract, value):
    assert extract(whole(member("a", pax={"size": value}))) == "collect_failed"


def test_time_is_bounded(extract):
    ticks = iter(range(100))
    assert extract(whole(member("a")), seconds=1.5, clock=lambda: next(ticks), step=512) == "extract_time_limit"


@pytest.mark.parametrize(
    "archive",
    [
        b"",
        END[:512],
        member("a", b"x" * 600)[:-100] + b"",
        member("a"),
        raw(b"a", checksum=b"000000\0 ") + END,
        raw(b"a", size=b"9") + END,
        raw(b"a", size=b"\x80" + b"\0" * 10 + b"\1") + END,
        raw(b"a", prefix=b"p") + END,
        whole(member("a")) + member("b"),
        member("a") + bytes(512) + member("b") + END,
        raw(b"x", flag=b"x", size=b"00000000000") + END,
        whole(member("a", pax={"comment": "hello"})),
    ],
)
def test_a_truncated_or_damaged_archive_is_no_archive(extract, archive):
    assert extract(archive) == "collect_failed"


def test_an_extended_header_before_nothing_or_twice_is_damage(extract):
    head = member("n" * 120)[:1024]
    assert extract(head + END) == "collect_failed"
    assert extract(head + head + END) == "collect_failed"


def test_what_the_disk_does_not_take_is_an_error_of_the_destination(extract):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        assert extract(whole(member("a", b"x" * 200))) == "extract_io"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
