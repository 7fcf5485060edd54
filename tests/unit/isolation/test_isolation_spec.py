import math
from decimal import Decimal
from pathlib import Path

import pytest
from isolation_samples import IMAGE, spec, wire
from pydantic import ValidationError

from isolation.digest import spec_hash
from isolation.spec import JobSpec, SpecInvalid, parse_spec

HEX = "sha256:" + "a" * 64


def paths_of(value):
    with pytest.raises(SpecInvalid) as caught:
        parse_spec(value)
    return [violation["path"] for violation in caught.value.violations]


def test_a_minimal_spec_gets_the_documented_defaults():
    job = parse_spec({"runId": "r", "image": IMAGE})
    assert job.model_dump() == {
        "run_id": "r",
        "image": IMAGE,
        "command": (),
        "args": (),
        "env": {},
        "cpus": 1.0,
        "memory_mb": 1024,
        "disk_mb": 2048,
        "timeout_seconds": 900,
        "workspace": None,
        "input": None,
        "egress": "none",
        "capability": None,
        "collect_exclude": (),
        "require_result": False,
        "labels": {},
    }


def test_a_file_may_say_what_it_is():
    assert parse_spec(wire(apiVersion="podgate.dev/v1", kind="Job")) == parse_spec(wire())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("apiVersion", "podgate.dev/v2"),
        ("kind", "Pod"),
        ("kind", None),
        ("runId", ""),
        ("runId", "a" * 201),
        ("runId", "-a"),
        ("runId", "a\n"),
        ("runId", "ä"),
        ("runId", 7),
        ("image", "python:3.12"),
        ("image", "python"),
        ("image", f"python:3.12@{HEX}"),
        ("image", f"host:5000/python:3@{HEX}"),
        ("image", f"host:5000@{HEX}"),
        ("image", f"host/a:1/b@{HEX}"),
        ("image", f"Python@{HEX}"),
        ("image", f"a//b@{HEX}"),
        ("image", f"a@{HEX}\n"),
        ("image", f"a@{HEX.upper()}"),
        ("image", f"{'a' * 256}@{HEX}"),
        ("image", HEX),
        ("command", "true"),
        ("command", None),
        ("command", ["a"] * 257),
        ("command", ["a" * (128 * 1024 + 1)]),
        ("args", {"a": 1}),
        ("args", ["a" * 1024] * 129),
        ("env", [["A", "b"]]),
        ("env", {f"N{i}": "" for i in range(65)}),
        ("env", {"A": "x" * (32 * 1024)}),
        ("cpus", 0.09),
        ("cpus", 32.001),
        ("cpus", 0.1005),
        ("cpus", 0.1 + 0.2),
        ("cpus", math.nan),
        ("cpus", math.inf),
        ("cpus", -1),
        ("cpus", True),
        ("cpus", "1"),
        ("cpus", 10**400),
        ("cpus", Decimal("sNaN")),
        ("memoryMb", 127),
        ("memoryMb", 65_537),
        ("memoryMb", 1024.0),
        ("memoryMb", "1024"),
        ("memoryMb", True),
        ("diskMb", 63),
        ("diskMb", 32_769),
        ("timeoutSeconds", 0),
        ("timeoutSeconds", 86_401),
        ("timeoutSeconds", None),
        ("workspace", ""),
        ("workspace", "a\0b"),
        ("workspace", 3),
        ("workspace", "a" * 4097),
        ("input", ["x"]),
        ("egress", "None"),
        ("egress", ""),
        ("egress", None),
        ("capability", ""),
        ("capability", "a b"),
        ("collectExclude", "dist"),
        ("collectExclude", ["a"] * 65),
        ("collectExclude", ["a" * 1024] * 17),
        ("requireResult", 1),
        ("requireResult", "true"),
        ("labels", []),
        ("labels", {f"n{i}": "" for i in range(65)}),
        ("memory_mb", 1024),
        ("unknown", 1),
    ],
)
def test_each_limit_is_held_and_the_field_named(field, value):
    assert paths_of(wire(**{field: value})) == [f"$.{field}"]


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("command", ["a", 1], "$.command[1]"),
        ("command", [""], "$.command[0]"),
        ("command", ["a\0"], "$.command[0]"),
        ("command", ["\x1b[2J"], "$.command[0]"),
        ("command", ["\ud800"], "$.command[0]"),
        ("args", ["\x7f"], "$.args[0]"),
        ("env", {"A": 1}, "$.env.A"),
        ("env", {"A": "\0"}, "$.env.A"),
        ("env", {"1A": ""}, '$.env["1A"]'),
        ("env", {"A-B": ""}, "$.env.A-B"),
        ("env", {"": ""}, '$.env[""]'),
        ("env", {3: ""}, '$.env["<int>"]'),
        ("env", {"PODGATE_X": ""}, "$.env.PODGATE_X"),
        ("env", {"KUBERNETES_PORT": ""}, "$.env.KUBERNETES_PORT"),
        ("env", {"LD_PRELOAD": ""}, "$.env.LD_PRELOAD"),
        ("collectExclude", ["/a"], "$.collectExclude[0]"),
        ("collectExclude", ["a/../b"], "$.collectExclude[0]"),
        ("collectExclude", ["./a"], "$.collectExclude[0]"),
        ("collectExclude", ["a", "a//b"], "$.collectExclude[1]"),
        ("collectExclude", [""], "$.collectExclude[0]"),
        ("collectExclude", ["a\nb"], "$.collectExclude[0]"),
        ("labels", {"a": "b\n"}, "$.labels.a"),
        ("labels", {"a": "b" * 1025}, "$.labels.a"),
        ("labels", {"": "b"}, '$.labels[""]'),
    ],
)
def test_the_place_inside_a_field_is_named(field, value, path):
    assert paths_of(wire(**{field: value})) == [path]


def test_all_violations_are_reported_at_once():
    bad = {"image": "x", "cpus": "1", "memoryMb": True, "env": {"LD_A": 1, "B": 2}, "kind": "X", "zz": 1}
    assert sorted(paths_of(bad)) == [
        "$.cpus",
        "$.env.B",
        "$.env.LD_A",
        "$.image",
        "$.kind",
        "$.memoryMb",
        "$.runId",
        "$.zz",
    ]


def test_a_refusal_never_repeats_a_value():
    with pytest.raises(SpecInvalid) as caught:
        parse_spec(wire(env={"TOKEN": "hunter2\0"}, image="hunter2", cpus="hunter2", labels={"a": "hunter2\n"}))
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.__cause__)


@pytest.mark.parametrize("value", [None, [], "x", 1, [("runId", "a")]])
def test_what_is_no_object_is_refused(value):
    assert paths_of(value) == ["$"]


@pytest.mark.parametrize(
    "repository",
    [
        "python",
        "library/python",
        "host/python",
        "host:5000/a/b",
        "10.0.0.1:5000/a",
        "[::1]:5000/a",
        "a-b/c__d.e/f-g",
        "Host.example/x",
    ],
)
def test_repositories_that_registries_know_are_taken(repository):
    assert spec(image=f"{repository}@{HEX}").image == f"{repository}@{HEX}"


@pytest.mark.parametrize(
    ("cpus", "millicores"), [(0.1, 100), (1, 1000), (2.01, 2010), (16.1, 16_100), (0.001 + 0.999, 1000), (32, 32_000)]
)
def test_processors_are_whole_millicores_exactly(cpus, millicores):
    assert spec(cpus=cpus).millicores == millicores


def test_line_feeds_and_tabs_belong_to_a_command():
    assert spec(command=["sh", "-c", "a\n\tb"]).command == ("sh", "-c", "a\n\tb")


def test_a_slash_at_the_end_of_an_exclusion_is_dropped():
    assert spec(collectExclude=["dist/"]).collect_exclude == ("dist",)


def test_a_spec_is_frozen_and_keeps_its_own_copy():
    env = {"A": "1"}
    job = spec(env=env)
    env["A"] = "2"
    assert job.env == {"A": "1"}
    with pytest.raises(ValidationError):
        job.cpus = 2


def test_python_callers_meet_the_same_limits():
    with pytest.raises(ValidationError):
        JobSpec(run_id="r", image="latest")
    assert JobSpec(run_id="run-1", image=IMAGE) == spec()


def test_a_spec_is_its_own_wire_form():
    job = spec(command=["a"], cpus=0.25, workspace="/w", labels={"a": "b"}, env={"A": "b"}, capability="c")
    assert parse_spec(job.model_dump(mode="json", by_alias=True)) == job
    assert parse_spec(job) is job


@pytest.mark.parametrize(
    "change",
    [
        {"runId": "other"},
        {"image": f"other@{HEX}"},
        {"command": ["a"]},
        {"args": ["a"]},
        {"env": {"A": ""}},
        {"cpus": 2},
        {"memoryMb": 2048},
        {"diskMb": 4096},
        {"timeoutSeconds": 901},
        {"egress": "web"},
        {"capability": "c"},
        {"collectExclude": ["dist"]},
        {"requireResult": True},
        {"labels": {"a": "b"}},
        {"workspace": "/w"},
        {"input": "/i"},
    ],
)
def test_each_field_takes_part_in_the_hash(change):
    assert spec_hash(spec(**change)) != spec_hash(spec())


def test_where_the_workspace_lies_takes_no_part_in_the_hash():
    one, other = spec(workspace="/a/w", input="/a/i"), spec(workspace=Path("/b/w"), input="/b/i")
    assert spec_hash(one) == spec_hash(other)


def test_command_and_args_are_not_taken_for_one_another():
    assert spec_hash(spec(command=["a"])) != spec_hash(spec(args=["a"]))


def test_the_hash_is_the_same_in_every_release():
    job = spec(cpus=0.25, env={"B": "2", "A": "ä"}, labels={"z": "1", "a": "2"})
    assert spec_hash(job) == "352f636f8ec2d811481e3f1940b5362bb6b98dce643fb58784677319279aa9c8"
