"""The documentation is held to the code: rendered parts are up to date, and what it names is there."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from launcher.cli.main import podgate
from launcher.settings_table import OTHER_VARIABLES, SETTINGS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
OTHERS = {"PODGATE_TEST_BED", "PODGATE_RUN_ID", "PODGATE_CAPABILITY", "PODGATE_LOG", "PODGATE_CONFIG"}


def render():
    spec = importlib.util.spec_from_file_location("render", ROOT / "docs" / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.rendered()


def commands(page: Path) -> list[list[str]]:
    """Every podgate command line in the page's shell blocks, and those that `code` spans show whole."""
    blocks = "".join(FENCE.findall(page.read_text())).replace("\\\n", " ")
    lines = [part.strip() for line in blocks.splitlines() for part in re.split(r"\||&&", line)]
    return [shlex.split(line) for line in lines if line.startswith("podgate ")]


@pytest.mark.parametrize("page", render(), ids=lambda page: page.name)
def test_rendered_parts_are_up_to_date(page):
    assert page.read_text() == render()[page], "make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_can_be_parsed(page):
    for words in commands(page):
        command = podgate.get_command(None, words[1])
        assert command is not None, words
        ours = words[2 : words.index("--")] if "--" in words else words[2:]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in ours if word.startswith("-")} <= options, words


def test_the_readme_shows_command_lines():
    assert len(commands(ROOT / "README.md")) >= 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_that_is_named_exists(page):
    named = set(re.findall(r"\bPODGATE_[A-Z0-9_]+\b", page.read_text()))
    assert named <= {s.env for s in SETTINGS.values()} | set(OTHER_VARIABLES) | OTHERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_that_is_named_exists(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    named = re.findall(r"`make ([a-z-]+)`", text) + re.findall(r"^make ([a-z-]+)$", text, re.MULTILINE)
    assert set(named) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page):
    named = re.findall(r"`((?:launcher|isolation|records|docs|tests)/[a-z_/]+(?:\.py|\.md)?)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_readme_and_ci_name_the_same_test_command():
    for page in ("README.md", ".ci/run"):
        assert "make test" in (ROOT / page).read_text().splitlines()
