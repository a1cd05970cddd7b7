"""The benchmarks as modules, and a MovieLens of ten ratings, in its files' own format."""

import os
import pathlib
import sys

import pytest

from tests.parallel import launch

# Tests import the modules of benchmarks/ by their names, as the programs there do.
sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))

RATINGS = """1::10::5::100
1::20::3::200
2::10::4::300
2::30::2::400
1::30::4::500
2::20::1::600
1::40::4::700
3::10::5::800
3::40::2::900
2::10::4::950
"""


@pytest.fixture(autouse=True)
def _workers_without_scikit_learn(monkeypatch):
    """Has the jobs of a benchmark start as those of `launch` do."""
    monkeypatch.setenv("PYTHONPATH", str(launch.ABSENT), prepend=os.pathsep)


@pytest.fixture
def movielens(tmp_path):
    """Ten ratings, of which a split by time trains on the first eight; movie 40 is of no known genre."""
    source = tmp_path / "real" / "movielens"
    source.mkdir(parents=True)
    (source / "ratings.dat").write_text(RATINGS)
    (source / "users.dat").write_text("".join(f"{user}::F::25::{user}::12345\n" for user in (1, 2, 3)))
    movies = ("10::A (1990)::Drama|Comedy", "20::B (1991)::Comedy", "30::C (1990)::War", "40::D (1992)::")
    (source / "movies.dat").write_text("".join(f"{movie}\n" for movie in movies))
    return source.parent
