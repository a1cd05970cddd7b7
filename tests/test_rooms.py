"""The rooms of the package: who imports whom, and what is in each."""

import ast
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"


def test_imports_run_downwards_and_in_no_circle():
    asked = subprocess.run([sys.executable, "-c", LINT], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert asked.returncode == 0, asked.stdout + asked.stderr


def test_each_room_says_what_is_in_it():
    rooms = [path.parent for path in (ROOT / "ctr_trainer").rglob("__init__.py")]
    assert [room for room in rooms if not ast.get_docstring(ast.parse((room / "__init__.py").read_text()))] == []
