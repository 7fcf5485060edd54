"""Figures: the median decides, pair by pair, and nothing measured is an error. What was begun is ended."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.figures import figure, ratios
from benchmarks.launches import Launched
from benchmarks.pipes import piped, said
from benchmarks.place import installed
from benchmarks.report import markdown
from benchmarks.series import of_large, of_launches
from benchmarks.transfers import Rates
from isolation.options import IsolationOptions

IMAGE = "registry.example/python@sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("goal", "met"), [(None, None), (("at most", 2.0), True), (("at most", 1.9), False), (("at least", 2.0), True)]
)
def test_the_median_is_held_against_the_goal(goal, met):
    assert figure("up", "s", [1.0, 9.0, 2.0], goal).met is met


def test_a_figure_says_its_spread_and_how_often_it_was_measured():
    said_of_it = figure("up", "s", [3.0, 1.0, 2.0], ("at most", 2.5)).as_json()

    assert [said_of_it[key] for key in ("min", "median", "max", "n", "goal")] == [1.0, 2.0, 3.0, 3, "at most 2.5"]


def test_ratios_are_of_pairs_that_were_measured_in_turn():
    assert ratios([4.0, 9.0], [2.0, 3.0]) == [2.0, 3.0]


def test_pairs_must_be_complete():
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0], [])


def test_nothing_measured_is_no_figure():
    with pytest.raises(ValueError, match="nothing was measured"):
        figure("up", "s", [])


def test_a_launch_is_held_against_the_bare_pod_of_its_own_pair():
    proven = [Launched(5.0, {"created": 0.1}, 1.9), Launched(9.0, {"created": 0.2}, 1.9), Launched(6.0, {}, 2.2)]

    found = {each.name.strip(): each for each in of_launches([2.0, 5.0, 2.4], proven)}

    assert found["launch() above the bare pod"].samples == pytest.approx((3.0, 4.0, 3.6))
    assert found["launch() above the bare pod"].met is False
    assert found["… created"].samples == (0.1, 0.2)


def test_a_slower_transfer_than_tar_misses_its_goal():
    rates = Rates([4.0], [5.0], [10.0], [8.0], [3.0], [40.0])

    found = [(each.median, each.met) for each in of_large(rates)]

    assert found[2] == (1.25, True)
    assert found[6:] == [(0.8, False), (40.0, False)]


def test_the_page_for_pasting_is_a_table_below_the_facts():
    lines = markdown({"date": "today"}, [figure("up", "s", [1.0, 1000.0], ("at most", 1.0))]).splitlines()

    assert lines[0] == "* date: today"
    assert lines[-1] == "| up | 500.50 | 1.00 | 1,000.00 | s | 2 | at most 1 | missed |"


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.anyio
async def test_either_end_of_a_pipe_can_fail_it(failing):
    ends = [["true"], ["true"]]
    ends[failing] = ["false"]

    with pytest.raises(RuntimeError, match="ended with"):
        await piped(*ends)


@pytest.mark.anyio
async def test_a_cancelled_pipe_leaves_no_program_behind(tmp_path):
    note = tmp_path / "pid"
    os.mkfifo(note)
    task = asyncio.create_task(piped(["sleep", "60"], ["sh", "-c", f"echo $$ >{note}; exec sleep 60"]))
    pid = int(await asyncio.to_thread(note.read_text))

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.anyio
async def test_a_failed_program_is_told_with_its_last_words():
    with pytest.raises(RuntimeError, match="no such thing"):
        await said("sh", "-c", "echo no such thing >&2; exit 3", seconds=10)


@pytest.mark.parametrize("broken", ["apply", "rollout", "nothing"])
@pytest.mark.anyio
async def test_an_installation_is_removed_whatever_becomes_of_it(tmp_path, broken):
    kubectl, calls = tmp_path / "kubectl", tmp_path / "calls"
    kubectl.write_text(f'#!/bin/sh\ncat >/dev/null\necho "$*" >>{calls}\ncase "$*" in *{broken}*) exit 1;; esac\n')
    kubectl.chmod(0o755)

    with pytest.raises((RuntimeError, ZeroDivisionError)):
        async with installed([str(kubectl)], IsolationOptions(namespace="mine", trusted_image=IMAGE)):
            _ = 1 / 0

    assert calls.read_text().splitlines()[-1].startswith("delete namespace mine ")


@pytest.mark.parametrize(
    ("words", "code"), [(["--install", "--namespace", "x"], 2), (["--count", "0"], 2), (["--skip", "all"], 2)]
)
def test_wrong_usage_is_refused_before_anything_is_measured(words, code):
    assert CliRunner().invoke(main, words).exit_code == code


def test_the_commands_start_can_be_measured_without_a_cluster(tmp_path):
    config = tmp_path / "kubeconfig"
    cluster = {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]}
    user = {"users": [{"name": "u", "user": {"token": "t"}}], "current-context": "x"}
    context = {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}
    config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **cluster, **user, **context}))
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\nexit 1\n")
    kubectl.chmod(0o755)
    flags = ["--kubeconfig", str(config), "--trusted-image", IMAGE, "--kubectl", str(kubectl)]

    skipped = ["--skip", "launches", "--skip", "transfers", "--count", "1", "--json"]
    told = json.loads(subprocess.check_output([sys.executable, "-m", "benchmarks", *flags, *skipped], timeout=60))

    assert (told["facts"]["cluster"], [each["name"] for each in told["figures"]]) == ("unknown", ["podgate --help"])
