"""All pages: links, flags and tables."""

import contextlib
import importlib
import io
import pathlib
import re

import pytest

from ctr_trainer import cli
from tests.docs import page

PAGES = page.pages()
# Flags of other programs (pip's, TensorBoard's), and flags that benchmarks/ define in a loop.
OTHERS = {
    "autotune",
    "archives",
    "logdir",
    "libraries",
    "master",
    "merges",
    "models",
    "optimizers",
    "requirement",
    "variants",
}
# Of the package that the page has one write; tests/test_from_outside.py trains with it.
OF_ANOTHER_PACKAGE = {"--embedding_optimizer=lion"}
IDS = [str(path.relative_to(page.ROOT)) for path in PAGES]


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_each_link_leads_to_a_file_and_to_a_heading(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), target
        assert not anchor or anchor in _anchors(there.read_text()), target


def _anchors(text):
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _lines():
    for path in PAGES:
        text = path.read_text()
        for arguments in page.commands(text):
            yield path.name, arguments
        for arguments in page.commands(text, "./run.sh"):
            yield path.name, ["train", *arguments]


@pytest.mark.parametrize("name, arguments", list(_lines()), ids=str)
def test_each_command_is_accepted(name, arguments, monkeypatch, capsys):
    monkeypatch.chdir(page.ROOT)
    command = importlib.import_module(f"ctr_trainer.commands.{arguments[0]}")
    monkeypatch.setattr(command, "run", lambda *groups: None)
    # A flagfile that a page has one write is not there; that of the repository is read.
    given = [each for each in arguments if not each.startswith("--flagfile=") or pathlib.Path(each[11:]).exists()]
    given = [each for each in given if each not in OF_ANOTHER_PACKAGE]
    assert cli.main(given) == 0, capsys.readouterr().err


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_each_file_of_the_repository_that_a_page_names_is_there(path):
    named = re.findall(
        r"(?<![\w/])((?:ctr_trainer|benchmarks|tests|examples|configs|scripts)/[\w/]+\.\w+)", path.read_text()
    )
    assert not [name for name in named if "MODEL" not in name and not (page.ROOT / name).exists()]


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Returns the names of all flags: of the commands, by their full help, and of the project's own programs."""
    names = {"flagfile", "help", "helpfull", "version"}
    for command in cli.COMMANDS:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            cli.main([command, "--helpfull"])
        names |= set(re.findall(r"^  --(\w+)", out.getvalue(), re.MULTILINE))
    for program in [*page.ROOT.glob("benchmarks/*.py"), *page.ROOT.glob("examples/*.py")]:
        names |= set(re.findall(r'"--(\w+)"', program.read_text()))
    return names


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_each_flag_exists(path, known):
    # A flag of ours has no hyphen; those with one are horovodrun's and pip's.
    named = set(re.findall(r"(?<![\w-])--([a-z]\w*)(?![\w-])", path.read_text()))
    wrong = {name for name in named if name not in known and name.removeprefix("no") not in known}
    assert wrong <= OTHERS


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_no_line_of_text_is_longer_than_120_columns(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    ")) and " " in line[:120]]
    assert not [line for line in lines if len(line) > 120]
