"""Words that the style of the package leaves out, counted over its sources and pages."""

import ast
import re

import pytest

from tests.docs.page import ROOT, pages

# Rooms that are still being rewritten; a room leaves this list when its text is plain.
_BEING_REWRITTEN = ("bench", "commands", "estimator", "export", "graph_notes", "publication", "scoring")
_SOURCES = [
    path
    for path in sorted((ROOT / "ctr_trainer").rglob("*.py"))
    if path.relative_to(ROOT).parts[1] not in _BEING_REWRITTEN
]
_MOST = 10


def _docstrings(path):
    """Yields (line, docstring) of a module and of all that it defines."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text())):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        if text:
            yield node.body[0].lineno, text


def test_a_docstring_begins_with_a_verb_or_a_noun():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in _SOURCES
        for line, text in _docstrings(path)
        if re.match(r"->|As |Of ", text)
    ]
    assert found == []


@pytest.mark.parametrize("words", [r"\bgo(es)?\s+on\b", r"\bbeside\b"])
def test_a_word_that_has_a_plainer_one_is_rare(words):
    found = [
        f"{path.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1}"
        for path in (*_SOURCES, *pages())
        for text in [path.read_text()]
        for match in re.finditer(words, text, re.IGNORECASE)
    ]
    assert len(found) <= _MOST, found
