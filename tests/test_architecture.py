"""The layers and the shape of the code are held by tests: they fail before a review has to say it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = [path for package in ("isolation", "launcher", "records") for path in sorted((ROOT / package).rglob("*.py"))]
MOST_LINES = 400
"""Of a file; the longest that can still be read at one go."""
ONE_FILE_EACH = ROOT / "isolation" / "inpod"
"""Programs that travel as text into a pod: each has to be one file, however long."""


def functions() -> list[int]:
    """Length in lines of every function, without its docstring."""
    return [
        _length(node)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def test_the_layers_hold():
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize(
    "path", [p for p in FILES if ONE_FILE_EACH not in p.parents], ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_file_is_too_long(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES


def test_nine_functions_in_ten_are_short():
    lengths = sorted(functions())
    assert lengths[len(lengths) * 9 // 10] < 30
