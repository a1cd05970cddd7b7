"""The public names: what `import ctr_trainer` offers, and that programs and pages use nothing else."""

import ast
import pathlib
import pydoc
import re
import subprocess
import sys

import pytest

import ctr_trainer
from tests.docs import page

ROOT = pathlib.Path(__file__).parents[1]
PROGRAMS = [
    *sorted((ROOT / "examples").glob("*.py")),
    *sorted((ROOT / "tests" / "golden").glob("*.py")),
    *sorted((ROOT / "tests" / "porting" / "after").glob("*.py")),
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The packages and modules that the API pages describe.
DESCRIBED = {
    name
    for path in (ROOT / "docs" / "api").glob("*.md")
    for name in re.findall(r"^::: ([\w.]+)", path.read_text(), re.M)
}


def _is_public(module):
    return any(module == name or module.startswith(f"{name}.") for name in DESCRIBED)


def _internal(text):
    """Returns the imports of a program that are not public."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "ctr_trainer":
            names = [alias.name for alias in node.names if alias.name not in ctr_trainer.__all__]
            found += [f"ctr_trainer.{name}" for name in names if not _is_public(f"ctr_trainer.{name}")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ctr_trainer."):
            found += [] if _is_public(node.module) else [node.module]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("ctr_trainer.")]
    return found


def test_an_internal_import_is_noticed():
    program = (
        "import ctr_trainer as ctr\nfrom ctr_trainer import Estimator, ranks\nfrom ctr_trainer.ranks import distributed"
    )
    assert _internal(program) == ["ctr_trainer.ranks", "ctr_trainer.ranks"]


def test_the_import_loads_neither_tensorflow_nor_numpy():
    program = "import sys, ctr_trainer; dir(ctr_trainer); print({'tensorflow', 'numpy', 'horovod'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize("name", ctr_trainer.__all__)
def test_each_name_is_there_once_it_is_used(name):
    assert name in dir(ctr_trainer)
    assert getattr(ctr_trainer, name).__doc__


def test_all_names_are_there_without_scikit_learn():
    program = (
        "import sys; sys.modules['sklearn'] = None\nfrom ctr_trainer import *\ntry: ClickClassifier()\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout == "ClickClassifier needs the package scikit-learn: pip install scikit-learn\n", done.stderr


@pytest.mark.parametrize(
    "name, line",
    [
        ("Estimator", "model_fn: the name of a model"),
        ("EmbeddingConfig", "sync_steps: "),
        ("RunConfig", "seed: seed of the order"),
        ("RunConfig", "warm_start: see"),
        ("TrainOp", "learning_rate: "),
        ("EvalSpec", "early_stopping_patience: "),
    ],
)
def test_help_of_a_class_has_the_arguments_of_its_constructor_once(name, line):
    text = pydoc.render_doc(getattr(ctr_trainer, name), renderer=pydoc.plaintext)
    assert len(re.findall(rf"^ \|\s+{line}", text, re.M)) == 1


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Estimators'"):
        _ = ctr_trainer.Estimators


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_programs_import_public_names_only(path):
    assert _internal(path.read_text()) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages_import_public_names_only(path):
    text = path.read_text()
    lines = re.findall(r"^\s*((?:from ctr_trainer\S* import|import ctr_trainer)[^\n]*)", text, re.M)
    assert [name for line in lines for name in _internal(line)] == []


def test_the_page_names_each_public_name():
    text = (page.DOCS / "api" / "ctr_trainer.md").read_text()
    assert re.findall(r"^\| `ctr\.(\w+)`", text, re.M) == ctr_trainer.__all__
