"""Bad input through the command: a stable code, an exit code, and nothing created, however the rest of it looks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from podgate_cli import Done, Place, Podgate

pytestmark = pytest.mark.cluster

KIB = 1024


@pytest.fixture(autouse=True)
def nothing_is_created(place: Place) -> Iterator[None]:
    """Hold that no test leaves an object behind."""
    before = place.objects()
    yield
    assert place.objects() - before == set()


def refused(podgate: Podgate, *arguments: str, stdin: str | None = None) -> Done:
    """Launch what must be refused."""
    done = podgate("launch", "--json", *arguments, stdin=stdin)
    assert done.out == ""
    return done


def spec(podgate: Podgate, **fields: Any) -> str:
    """Return a spec that is good but for ``fields``."""
    good = {"runId": podgate.run_id(), "image": podgate.image("busybox"), "cpus": 0.1, "memoryMb": 128, "diskMb": 64}
    return json.dumps({**good, **fields})


DIGEST = "@sha256:" + "0" * 64

WRONG: list[dict[str, Any]] = [
    {
        "runId": "",
        "image": "registry.example/image:latest",
        "command": ["true"] * 257,
        "args": ["nul\0"],
        "env": {f"NAME_{n}": "" for n in range(65)},
        "cpus": 0.099,
        "memoryMb": 127,
        "diskMb": 63,
        "timeoutSeconds": 0,
        "egress": "No Name",
        "collectExclude": ["../above"],
        "requireResult": "yes",
        "labels": {f"label-{n}": "" for n in range(65)},
        "privileged": True,
        "apiVersion": "podgate.dev/v2",
        "kind": "Pod",
    },
    {
        "runId": "x" * 201,
        "image": "registry.example/image:latest" + DIGEST,
        "command": ["x" * (128 * KIB + 1)],
        "args": "text",
        "env": {"BIG": "x" * (32 * KIB)},
        "cpus": 32.001,
        "memoryMb": 65_537,
        "diskMb": 32_769,
        "timeoutSeconds": 86_401,
        "collectExclude": ["/absolute"],
        "labels": {"": "nameless"},
        "hostNetwork": True,
    },
    {
        "runId": "-leading",
        "image": "registry.example/image@sha256:" + "0" * 63,
        "command": [""],
        "env": {"PODGATE_RUN_ID": "mine", "KUBERNETES_SERVICE_HOST": "mine", "LD_PRELOAD": "mine", "NO-NAME": "x"},
        "cpus": 0.1001,
        "memoryMb": "128",
        "diskMb": 64.5,
        "timeoutSeconds": 1.5,
        "collectExclude": [f"path-{n}" for n in range(65)],
    },
]
"""Each field beyond each of its limits; all fields of one entry are wrong at the same time."""


@pytest.mark.parametrize("wrong", WRONG, ids=["first", "second", "third"])
def test_each_limit_of_a_spec_is_held_and_named(podgate: Podgate, wrong: dict[str, Any]) -> None:
    done = refused(podgate, "-", stdin=spec(podgate, **wrong))

    assert (done.code, done.error["code"], done.error["stage"]) == (2, "job_spec_invalid", "spec"), done.err
    named = {violation["path"].split(".")[1].split("[")[0] for violation in done.error["violations"]}
    assert named == set(wrong)


def test_every_reserved_name_is_refused_by_its_own_path(podgate: Podgate) -> None:
    done = refused(podgate, "-", stdin=spec(podgate, env={"LD_X": "", "PODGATE_X": "", "KUBERNETES_X": "", "ok": ""}))

    paths = [violation["path"] for violation in done.error["violations"]]
    assert (done.code, sorted(paths)) == (2, ["$.env.KUBERNETES_X", "$.env.LD_X", "$.env.PODGATE_X"])


def test_a_spec_without_an_image_is_none(podgate: Podgate) -> None:
    done = refused(podgate, "--", "true")

    assert (done.code, done.error["violations"][0]["path"]) == (2, "$.image")


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", "", "runId: a\nrunId: b\n", "&a [*a]"],
    ids=["cut", "no object", "empty", "a key twice", "a loop"],
)
def test_a_file_that_holds_no_spec_is_refused(podgate: Podgate, text: str) -> None:
    done = refused(podgate, "-", stdin=text)

    assert (done.code, done.error["code"]) == (2, "job_spec_invalid"), done.err


def test_an_egress_profile_that_the_settings_do_not_have_is_refused(podgate: Podgate) -> None:
    done = refused(podgate, "-", stdin=spec(podgate, egress="the-internet"))

    assert (done.code, done.error["code"]) == (2, "job_spec_invalid"), done.err


def test_a_capability_that_nobody_resolves_is_refused(podgate: Podgate) -> None:
    done = refused(podgate, "-", stdin=spec(podgate, capability="database"))

    assert (done.code, done.error["code"]) == (2, "job_spec_invalid"), done.err


# --- settings and usage ---


@pytest.mark.parametrize(
    "setting",
    [
        {"workspace_root": "/"},
        {"workspace_root": "relative"},
        {"trusted_image": "registry.example/image:latest"},
        {"trusted_image": ""},
        {"first_proof_seconds": "soon"},
        {"lease_seconds": 5, "renewal_seconds": 5},
        {"closed_targets": "example.com:80"},
        {"platform": "mainframe"},
        {"worker_uid": 0},
        {"worker_uid": 64000, "prover_uid": 64000},
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_is_refused(podgate: Podgate, setting: dict[str, Any]) -> None:
    done = refused(podgate.set(**setting), "-", stdin=spec(podgate))

    assert (done.code, done.error["code"]) == (2, "setting_invalid"), done.err


def test_a_workspace_root_that_is_a_link_to_the_root_is_the_root(podgate: Podgate, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")

    done = refused(podgate.set(workspace_root=tmp_path / "link"), "-", stdin=spec(podgate))

    assert (done.code, done.error["code"]) == (2, "setting_invalid"), done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "--json"),
        ("status", "--json", "no-handle"),
        ("status", "--json", "other namespace/" + "0" * 20),
        ("status", "--json", "ns/" + "0" * 20, "--run-id", "x"),
        ("run", "--json", "--unknown-flag"),
        ("run", "--json", "--timeout", "soon"),
        ("run", "--json", "--env", "=value"),
        ("launch", "--json", "/nowhere/job.yaml"),
        ("status", "--json", "--set", "no_such_setting=1", "--run-id", "x"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(podgate: Podgate, arguments: tuple[str, ...]) -> None:
    done = podgate(*arguments)

    assert (done.code, done.out) == (2, ""), done.err
    assert done.error["code"] in ("usage_invalid", "setting_invalid")


# --- workspace and input ---


def test_a_link_is_no_workspace(podgate: Podgate, root: Path) -> None:
    (root / "tree").mkdir()
    (root / "link").symlink_to(root / "tree")

    through_api = refused(podgate, "-", stdin=spec(podgate, workspace=str(root / "link")))
    by_flag = refused(podgate, *podgate.shell(podgate.run_id(), "true", "--workspace", str(root / "link")))

    assert [(d.code, d.error["code"]) for d in (through_api, by_flag)] == [(125, "workspace_invalid")] * 2


@pytest.mark.parametrize("where", ["tree/../../outside", "link/outside", "/etc"])
def test_a_spec_may_not_name_what_lies_outside_the_workspace_root(podgate: Podgate, root: Path, where: str) -> None:
    (root.parent / "outside").mkdir()
    (root / "link").symlink_to(root.parent)

    done = refused(podgate, "-", stdin=spec(podgate, workspace=str(root / where)))

    assert (done.code, done.error["code"]) == (125, "workspace_invalid"), done.err


def test_the_whole_machine_is_no_workspace_not_even_by_flag(podgate: Podgate) -> None:
    done = refused(podgate, *podgate.shell(podgate.run_id(), "true", "--workspace", "/"))

    assert (done.code, done.error["code"]) == (125, "workspace_invalid"), done.err


def test_a_link_that_leads_out_of_the_workspace_is_refused(podgate: Podgate, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "out").symlink_to("../../secret")

    done = refused(podgate, *podgate.shell(podgate.run_id(), "true", "--workspace", str(tmp_path / "tree")))

    assert (done.code, done.error["code"]) == (125, "workspace_invalid"), done.err


def test_a_workspace_that_does_not_fit_is_refused(podgate: Podgate, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with (tmp_path / "tree" / "large").open("wb") as large:
        large.truncate(65 << 20)

    done = refused(podgate, *podgate.shell(podgate.run_id(), "true", "--workspace", str(tmp_path / "tree")))

    assert (done.code, done.error["code"]) == (125, "workspace_too_large"), done.err


@pytest.mark.parametrize(
    "content",
    [b'{"cut": ', b"\xff", b'"' + b"x" * (512 * KIB) + b'"', None],
    ids=["not JSON", "not UTF-8", "more than 512 KiB", "a directory"],
)
def test_an_input_that_cannot_be_one_is_refused(podgate: Podgate, tmp_path: Path, content: bytes | None) -> None:
    given = tmp_path / "input"
    given.mkdir() if content is None else given.write_bytes(content)

    done = refused(podgate, *podgate.shell(podgate.run_id(), "true", "--input", str(given)))

    assert (done.code, done.error["code"]) == (125, "input_invalid"), done.err
