"""Words that the style of the package leaves out, counted over its sources and pages."""

import ast
import functools
import re

import pytest

from tests.docs.page import ROOT, pages

_SOURCES = sorted((ROOT / "ctr_trainer").rglob("*.py"))
_MOST = 10


@functools.cache
def _parsed(path):
    return ast.parse(path.read_text())


def _docstrings(path):
    """Yields (line, docstring) of a module and of all that it defines."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(_parsed(path)):
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


_PLAINER = [
    r"\bgo(es)?\s+on\b",
    r"\bbeside\b",
    r"\bso\s+many\b",
    r"\bstart(s|ed)?\s+again\b",
    r"\bmend(s|ed|ing)?\b",
    r"\bwithout\s+a\s+word\b",
    r"\bequal\s+runs\b",
    r"\bto\s+the\s+bit\b",
]


@pytest.mark.parametrize("words", _PLAINER)
def test_a_word_that_has_a_plainer_one_is_rare(words):
    found = [
        f"{path.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1}"
        for path in (*_SOURCES, *pages())
        for text in [path.read_text()]
        for match in re.finditer(words, text, re.IGNORECASE)
    ]
    assert len(found) <= _MOST, found


# Places whose messages may contain flags: the command line, what runs other programs, and what makes flags and help
# texts from settings.
_SAYS_FLAGS = ("cli.py", "commands/", "launch/", "models/", "settings/", "system/installation/")
_EXCEPT = {
    "estimator/advice.py",  # Its advice is a flag.
    "data/conversion/draft.py",  # A comment in a feature spec that it writes.
    "embedding/service/local_service.py",  # The arguments of a service.
    "live/publication/delivery.py",  # The arguments of a process that delivers.
    "estimator/hooks/profile_hook.py",  # A flag of TensorBoard.
}


@functools.cache
def _messages():
    """Returns a list of (place in the package, line, text) for each text in the sources that is no docstring."""
    found = []
    for path in _SOURCES:
        docstrings = {line for line, _ in _docstrings(path)}
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno not in docstrings:
                found.append((path.relative_to(ROOT / "ctr_trainer"), node.lineno, node.value))
    return found


def test_a_message_of_the_library_names_settings_and_not_flags():
    found = [
        f"{place}:{line}: {text}"
        for place, line, text in _messages()
        if not place.as_posix().startswith(_SAYS_FLAGS) and place.as_posix() not in _EXCEPT
        if re.search(r"(^|[ (`])--[a-z]\w+", text)
    ]
    assert found == []


@pytest.mark.parametrize(
    "words", [r"\banew\b", r"\bmend", r"\bstands? still\b", r"\bis there already\b", r"\bis wanted\b"]
)
def test_no_message_has_a_word_that_has_a_plainer_one(words):
    found = [f"{place}:{line}: {text}" for place, line, text in _messages() if re.search(words, text, re.IGNORECASE)]
    assert found == []
