"""What a docstring refers to exists: a reader who follows `layers.experts.towers` finds it there."""

import ast
import pathlib
import re

PACKAGE = pathlib.Path(__file__).parents[2] / "ctr_trainer"
MODULES = {path.relative_to(PACKAGE).with_suffix("").parts: path.read_text() for path in PACKAGE.rglob("*.py")}
MODULES = {parts[:-1] if parts[-1] == "__init__" else parts: text for parts, text in MODULES.items()}
_FILES = ("json", "jsonl", "log", "pb", "png", "proto", "stat")  # Endings of files, as in `flags.json`.
_FOREIGN = ("saved_model.Builder", "session.run")  # TensorFlow's.


def _docstrings(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def _exists(reference):
    """Returns whether a dotted name is a module, or a name in a module; True if no module could be meant."""
    parts = tuple(reference.removeprefix("ctr_trainer.").split("."))
    packages = {module[0] for module in MODULES if module}
    is_meant = parts[0] in packages
    for count in range(len(parts), 0, -1):
        for module, text in MODULES.items():
            if module[-count:] == parts[:count]:
                is_meant = True
                if count == len(parts) or re.search(rf"\b{parts[count]}\b", text):
                    return True
    return not is_meant


def test_what_docstrings_refer_to_exists():
    missing = []
    for module, text in MODULES.items():
        found = re.findall(r"`([a-z_]+(?:\.\w+)+)(?:\(.*?\))?`", "\n".join(_docstrings(text)))
        found = [name for name in found if name.rpartition(".")[2] not in _FILES and name not in _FOREIGN]
        missing += [f"{'.'.join(module)}: {name}" for name in found if not _exists(name)]
    assert missing == []
    assert _exists("head.calibrated") and not _exists("head.no_such_name")
