"""The packages: their imports, their docstrings, and the uniqueness of class names."""

import ast
import collections
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


def test_no_class_name_stands_twice():
    found = collections.defaultdict(list)
    for path in (ROOT / "ctr_trainer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name != "Params":  # By which the registry finds a model's own.
                found[node.name].append(path.relative_to(ROOT).as_posix())
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
