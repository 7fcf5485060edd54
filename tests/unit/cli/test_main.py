import json
import re
import subprocess
import sys

import pytest
import yaml

from launcher.cli import exitcodes
from launcher.cli.main import SECTIONS
from launcher.cli.main import podgate as group
from launcher.cli.program import Program
from launcher.settings_table import SETTINGS

COMMANDS = [name for entries in SECTIONS.values() for name in entries]
HEAVY = {"pydantic", "rich", "kubernetes", "aiohttp", "structlog", "yaml", "asyncio"}


def test_help_of_the_group_imports_nothing_heavy():
    script = (
        "import sys; from launcher.cli.main import main; main(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert HEAVY & set(done.stderr.split()) == set()


def test_help_of_a_command_does_not_import_the_kubernetes_client():
    script = (
        "import sys; from launcher.cli.main import main; main(['run', '--help']); print(*sys.modules, file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert {"kubernetes", "aiohttp"} & set(done.stderr.split()) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_its_line_in_the_groups_help_is_there(podgate, name):
    assert f"  {name} " in podgate("--help").out.decode()
    assert podgate(name, "--help").out.decode().startswith(f"Usage: podgate {name} [OPTIONS]")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_json(name):
    command = group.get_command(None, name)
    assert "--json" in [option for parameter in command.params for option in parameter.opts]


def test_help_fits_eighty_columns(podgate):
    pages = [podgate("--help"), *(podgate(name, "--help") for name in COMMANDS)]
    assert max(len(line) for page in pages for line in page.out.decode().splitlines()) <= 80


def test_help_teaches_examples_exit_codes_and_environment(podgate):
    text = podgate("--help").out.decode()
    assert all(code in text for code in exitcodes.MEANINGS)
    assert "podgate run --image" in text
    assert "PODGATE_TRUSTED_IMAGE" in text


def test_version_is_said(podgate):
    assert podgate("--version").out.startswith(b"podgate ")


@pytest.mark.parametrize(
    "argv", [("nonsense",), ("run", "--nonsense"), ("run", "--timeout", "soon"), ("run", "--set", "x")]
)
def test_wrong_usage_is_2_and_says_where_help_is(podgate, argv):
    answer = podgate(*argv)
    assert answer.code == 2
    assert "podgate: usage_invalid: " in answer.err
    assert "--help" in answer.err


def test_wrong_usage_with_json_ends_in_json(podgate):
    answer = podgate("status", "--nonsense", "--json")
    assert json.loads(answer.err.splitlines()[-1])["error"]["code"] == "usage_invalid"


def test_a_bad_setting_is_2_and_named(podgate):
    answer = podgate("status", "--run-id", "x", "--set", "platform=mars")
    assert answer.code == 2
    assert "platform, from the flag --set" in answer.err


def test_a_bad_log_level_is_2(podgate):
    assert podgate("status", "--run-id", "x", environ={"PODGATE_LOG": "loud"}).code == 2


def test_manifests_are_yaml_that_carries_namespace_and_image(podgate):
    image = "registry.example/other@sha256:" + "e" * 64

    printed = podgate("manifests", "--namespace", "jobs", "--image", image).out.decode()

    objects = list(yaml.safe_load_all(printed))
    assert objects[0]["kind"] == "Namespace"
    assert objects[0]["metadata"]["name"] == "jobs"
    assert image in printed


def test_manifests_with_json_are_one_list(podgate):
    printed = json.loads(podgate("manifests", "--json").out)
    assert (printed["kind"], printed["items"][0]["kind"]) == ("List", "Namespace")


def test_settings_lists_all_with_value_and_source(podgate):
    printed = json.loads(podgate("settings", "--namespace", "jobs", "--json").out)["settings"]

    said = {s["name"]: (s["value"], s["source"]) for s in printed}
    assert list(said) == list(SETTINGS)
    assert said["namespace"] == ("jobs", "the flag --namespace")
    assert said["witness"] == (None, "default")


def test_settings_works_before_a_trusted_image_was_chosen(podgate):
    assert podgate("settings", program=Program({})).code == 0


def test_settings_refuses_what_cannot_be(podgate):
    assert podgate("settings", "--set", "platform=mars").code == 2


def test_preflight_prints_every_finding(podgate, script):
    script.reports["preflight"] = {"ok": True, "policyLatencySeconds": 0.4, "nodeExposure": ["kubelet 10.0.0.1:10250"]}

    answer = podgate("preflight", "--force")

    assert answer.code == 0
    assert b"kubelet 10.0.0.1:10250" in answer.out
    assert script.calls == ["preflight force=True"]


def test_a_preflight_that_found_something_is_1(podgate, script):
    script.reports["preflight"] = {"ok": False, "code": "policy_not_enforced"}
    assert podgate("preflight").code == 1


REAPED = {"deleted": [{"kind": "Pod", "name": "podgate-run-x", "why": "its record is gone"}], "kept": [], "failed": []}


def test_reap_tells_a_person_what_went_and_why(podgate, script):
    script.reports["reap"] = REAPED
    answer = podgate("reap")
    assert answer.code == 0
    assert re.search(rb"deleted +Pod +podgate-run-x +its record is gone", answer.out)


def test_a_pass_of_the_reaper_that_failed_in_part_is_125(podgate, script):
    script.reports["reap"] = {**REAPED, "failed": REAPED["deleted"]}
    assert podgate("reap").code == 125


def test_reap_prints_what_it_did(podgate, script):
    script.reports["reap"] = REAPED

    answer = podgate("reap", "--dry-run", "--json")

    assert json.loads(answer.out)["deleted"][0]["name"] == "podgate-run-x"
    assert script.calls == ["reap dry_run=True"]
