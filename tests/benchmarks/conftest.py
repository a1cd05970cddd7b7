"""The benchmarks as modules."""

import os
import pathlib
import sys

import pytest

from tests.parallel import launch

# Tests import the modules of benchmarks/ by their names, as the programs there do.
sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import sides  # noqa: E402


@pytest.fixture(autouse=True)
def _workers_without_scikit_learn(monkeypatch):
    """Has the jobs of a benchmark start as those of `launch` do."""
    monkeypatch.setenv("PYTHONPATH", str(launch.ABSENT), prepend=os.pathsep)


@pytest.fixture
def warm_python(warm_python, monkeypatch):
    """Has commands and workers of a benchmark, too, start in processes that have imported TensorFlow already."""
    monkeypatch.setattr(sides, "COMMAND", (sys.executable, *sides.COMMAND[1:]))
