"""The first ratings of the real MovieLens, in its files' own format."""

import itertools

import pytest

RATINGS = 100_000


@pytest.fixture(scope="session")
def movielens(real_data, tmp_path_factory):
    """The directory of the files: all users and movies, and the ratings of the first users."""
    source, directory = real_data / "movielens", tmp_path_factory.mktemp("movielens")
    with open(source / "ratings.dat", encoding="latin-1") as file:
        (directory / "ratings.dat").write_text("".join(itertools.islice(file, RATINGS)), encoding="latin-1")
    for name in ("users.dat", "movies.dat"):
        (directory / name).symlink_to(source / name)
    return directory
