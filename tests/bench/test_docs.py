"""docs/benchmarks.md."""

import pathlib
import re

import pytest

from ctr_trainer import cli
from ctr_trainer.bench import settings
from ctr_trainer.commands import bench

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "benchmarks.md"
TEXT = DOCS.read_text()


def test_the_documentation_names_every_axis():
    (listed,) = re.findall(r"`--axes`\s+picks\s+from:\s+(.+?)\.\s", TEXT, re.DOTALL)
    assert re.findall(r"`(\w+)`", listed) == list(settings.AXES)


@pytest.mark.parametrize("example", re.findall(r"python -m ctr_trainer (bench .+)", TEXT) or [None])
def test_the_examples_are_accepted_and_are_those_of_the_help(example, monkeypatch):
    ran = []
    monkeypatch.setattr(bench, "run", lambda action, *groups: ran.append(action))
    monkeypatch.chdir(DOCS.parents[1])
    assert cli.main(example.split()) == 0
    assert ran == [example.split()[1]]
    assert f"python -m ctr_trainer {example}" in bench.EXAMPLES
