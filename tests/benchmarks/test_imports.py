"""Every benchmark imports what it uses; `make lint` checks by mypy that its calls fit what they call."""

import importlib
import pathlib

import pytest

BENCHMARKS = sorted((pathlib.Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("name", [path.stem for path in BENCHMARKS])
def test_a_benchmark_imports_what_it_uses(name):
    importlib.import_module(name)
