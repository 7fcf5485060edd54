"""What the programs' texts promise as texts."""

import ast
import json
import subprocess
import sys

import pytest

from isolation.inpod import source
from isolation.objects.programs import (
    CanaryConfig,
    FollowConfig,
    GateConfig,
    KeeperConfig,
    ProverConfig,
    Target,
    WitnessConfig,
    argv,
    pod_command,
)

NETWORK = ("prover", "gate", "follow", "keeper", "witness", "canary")
PROVER = ProverConfig(witness={"4": "10.0.0.1"}, control_port=1, deny_port=2, health_port=3, timeout_seconds=4)
CONFIGS = {
    "prover": PROVER,
    "gate": GateConfig(health_port=1, bound_seconds=2),
    "follow": FollowConfig(health_port=1),
    "keeper": KeeperConfig(),
    "witness": WitnessConfig(control_port=1, deny_port=2),
    "canary": CanaryConfig(mode="open", witness={"4": "10.0.0.1"}, control_port=1, deny_port=2),
}
SLOW = {
    "asyncio",
    "json",
    "re",
    "enum",
    "signal",
    "typing",
    "collections",
    "socket",
    "selectors",
    "http",
    "contextlib",
    "functools",
}


@pytest.mark.parametrize("program", NETWORK)
def test_a_program_holds_no_dollar_sign_that_the_kubelet_could_expand(program):
    assert "$" not in source(program)


@pytest.mark.parametrize("program", NETWORK)
def test_a_program_is_python_3_9_and_imports_nothing_of_ours(program):
    tree = ast.parse(source(program), feature_version=(3, 9))
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)} | {
        a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names
    }
    allowed = {
        "__future__",
        "typing",
        "os",
        "sys",
        "time",
        "errno",
        "select",
        "fcntl",
        "stat",
        "_socket",
        "_signal",
        "_json",
    }
    assert imported <= allowed


@pytest.mark.parametrize("program", NETWORK)
def test_no_name_is_bound_twice_when_parts_are_put_together(program):
    named = [n.name for n in ast.parse(source(program)).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    named += [
        t.id
        for n in ast.parse(source(program)).body
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    ]
    assert sorted(set(named) - {"TYPE_CHECKING"}) == sorted(n for n in named if n != "TYPE_CHECKING")


@pytest.mark.parametrize("program", NETWORK)
def test_a_program_imports_nothing_that_starts_slowly(program):
    text = (
        source(program).replace('if __name__ == "__main__":', "if False:")
        + "\nimport sys\nprint(' '.join(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, check=True, timeout=20
    )
    assert not SLOW & set(done.stdout.split())


@pytest.mark.parametrize("program", NETWORK)
def test_a_program_fits_into_one_argument_of_the_kernel(program):
    assert len(source(program).encode()) < 128 * 1024 - 1


@pytest.mark.parametrize("program", NETWORK)
def test_argv_is_isolated_python_with_source_and_canonical_config(program):
    words = argv(program, CONFIGS[program])
    assert words[:-2] == ["python3", "-I", "-S", "-c"]
    assert words[-2] == source(program)
    assert json.dumps(json.loads(words[-1]), sort_keys=True, separators=(",", ":")) == words[-1]


def test_a_config_is_spelt_in_camel_case():
    assert json.loads(argv("gate", CONFIGS["gate"])[-1]) == {
        "boundSeconds": 2.0,
        "healthPort": 1,
        "root": "/run/podgate",
        "terminationLog": "/dev/termination-log",
    }


def test_dollar_signs_of_a_config_come_through_the_kubelets_expansion():
    config = PROVER.model_copy(update={"targets": (Target(ip="10.0.0.9", port=80, name="$(HOME) $x"),)})
    _, args = pod_command("prover", config)
    assert "$$(HOME) $$x" in args[0]
    assert args[0].replace("$$", "$") == argv("prover", config)[-1]


def test_more_targets_than_sockets_allow_are_refused():
    with pytest.raises(ValueError, match="at most 32"):
        ProverConfig(**{**PROVER.model_dump(), "targets": [{"ip": "10.0.0.9", "port": 80, "name": "t"}] * 33})
