"""docs/benchmarks.md."""

import pathlib
import re

import pytest

from ctr_trainer import cli
from ctr_trainer.bench import settings
from ctr_trainer.bench.job_flags import AccumulationFlags, BenchFlags
from ctr_trainer.commands import bench
from ctr_trainer.experiment import flags

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "benchmarks.md"
TEXT = DOCS.read_text()


def test_the_documentation_names_flags_that_exist():
    known = set(flags.define((*flags.EXPERIMENT[:-1], BenchFlags, AccumulationFlags)))
    for program in (DOCS.parents[1] / "benchmarks").glob("*.py"):
        known |= set(re.findall(r'"--(\w+)"', program.read_text()))
    named = set(re.findall(r"--([a-z_]\w*)", TEXT))
    unknown = {name for name in named if name not in known and name.removeprefix("no") not in known}
    assert unknown <= {"flagfile"}


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
