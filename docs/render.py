# noqa: INP001 -- a script, not a package
"""Renders what the documentation takes from the code: ``docs/errors.md`` whole, and marked blocks of other pages.

``make docs`` writes them; a test says when they are out of date. A block stands between ``<!-- rendered: NAME -->`` and
``<!-- end -->``.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from isolation.names import LAUNCHER_ACCOUNT, REAPER_ACCOUNT
from isolation.objects.install import REAPER_RIGHTS, launcher_rights
from isolation.options import IsolationOptions
from launcher.cli import exitcodes
from launcher.cli.main import SECTIONS
from launcher.errors import CATALOGUE, Code
from launcher.settings_table import FLAGS, OTHER_VARIABLES, SETTINGS

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/operators.md", "docs/plugin-authors.md")
ERRORS = "docs/errors.md"

_BLOCK = re.compile(r"(<!-- rendered: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

_GROUPS = {
    "contract": "What the caller asked for",
    "records": "Records",
    "objects": "Objects and the cluster",
    "proof": "The proof of isolation",
    "end": "How runs end",
    "transfer": "Workspaces and results",
    "warning": "Warnings",
}
"""Order and titles of the groups in ``docs/errors.md``."""

_INTRODUCTION = """\
# Error codes

Every refusal and every end of a run has one of these codes. They are stable: programs may rely on them. The command
prints them as `podgate: CODE: MESSAGE`, and with `--json` as the last line on stderr:

```json
{"error": {"code": "…", "message": "…", "stage": "…", "violations": [{"path": "…"}]}}
```

This page is rendered from `launcher/errors.py` by `make docs`.
"""


def errors_page() -> str:
    """Return ``docs/errors.md``."""
    parts = [_INTRODUCTION]
    for group, title in _GROUPS.items():
        codes = [code for code in CATALOGUE if code.group == group and not _variant(code)]
        parts.append(f"## {title}\n\n{_codes(codes)}")
        if group == "proof":
            parts.append(
                "Each of these also exists with `_before_release` behind it: a proof had stood, and fell before the "
                "worker was released.\n"
            )
    return "\n".join(parts)


def page(text: str) -> str:
    """Return a page with its blocks rendered anew."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block['name']]()}\n{block[3]}", text)


def _variant(code: Code) -> bool:
    return code.code.endswith("_before_release")


def _codes(codes: Sequence[Code]) -> str:
    return _table(("code", "what happened", "where to look"), ((f"`{c.code}`", c.meaning, c.look) for c in codes))


def _settings() -> str:
    rows = ((f"`{s.env}`", f"`{s.name}`", s.default, s.allowed, s.meaning) for s in SETTINGS.values())
    table = _table(("environment", "file, `--set`", "default", "allowed", "meaning"), rows)
    flags = ", ".join(f"`{flag}`" for flag in FLAGS.values())
    return f"{table}\nFlags of their own: {flags}; every other setting is given with `--set NAME=VALUE`.\n"


def _other_variables() -> str:
    return _table(("environment", "meaning"), ((f"`{name}`", text) for name, text in OTHER_VARIABLES.items()))


def _exit_codes() -> str:
    return _table(("code", "meaning"), exitcodes.MEANINGS.items())


def _commands() -> str:
    rows = ((f"`podgate {name}`", entry.help) for entries in SECTIONS.values() for name, entry in entries.items())
    return _table(("command", "does"), rows)


def _proof_codes() -> str:
    return _codes([code for code in CATALOGUE if code.group == "proof" and not _variant(code)])


def _end_codes() -> str:
    return _codes([code for code in CATALOGUE if code.group == "end"])


def _rights() -> str:
    options = IsolationOptions(trusted_image=f"trusted@sha256:{'0' * 64}")
    held = ((LAUNCHER_ACCOUNT, launcher_rights(options)), (REAPER_ACCOUNT, REAPER_RIGHTS))
    rows = ((f"`{account}`", f"`{r.resource}`", " ".join(r.verbs), r.why) for account, rights in held for r in rights)
    return _table(("account", "resource", "verbs", "why"), rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "rights": _rights,
    "settings": _settings,
    "other-variables": _other_variables,
    "exit-codes": _exit_codes,
    "commands": _commands,
    "proof-codes": _proof_codes,
    "end-codes": _end_codes,
}


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def rendered() -> dict[Path, str]:
    """Return every page as it should be."""
    pages = {ROOT / name: page((ROOT / name).read_text(encoding="utf-8")) for name in PAGES}
    return {ROOT / ERRORS: errors_page(), **pages}


def main() -> int:
    """Write what is out of date, and say what that was."""
    for path, text in rendered().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(ROOT)} rendered\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
