"""The `movielens` format: the `::`-separated files of MovieLens-1M and 10M, joined."""

import itertools
import pathlib
import re

import pyarrow as pa

from ctr_trainer.data.chunk import Chunk
from ctr_trainer.errors import UserError

COLUMNS = (
    "user_id", "movie_id", "rating", "timestamp", "gender", "age", "occupation", "zip3", "year", "genres",
)  # fmt: skip
_ROWS = 100_000
_YEAR = re.compile(r"\((\d{4})\)\s*$")


def read(source, spec, bad_rows, time=None):
    """Yields Chunks of `COLUMNS`, a row a rating, with its user's and movie's columns; strings, null where unknown.

    `zip3` is the first three characters of the zip code, `year` stands in brackets at the end of the title, `genres`
    are separated by `|`. A user or movie that its file does not list has no such columns (10M lists no users at all).

    Args:
      source: the directory of ratings.dat, movies.dat and, for MovieLens-1M, users.dat; latin-1.
      spec: not used: the files have one form.
      bad_rows: BadRows.
      time: not used: all columns are read.
    """
    directory = pathlib.Path(source[0] if isinstance(source, (list, tuple)) and len(source) == 1 else source)
    for name in ("ratings.dat", "movies.dat"):
        if not (directory / name).is_file():
            raise UserError(f"{directory}: has no {name}; the input of format movielens is MovieLens's directory")
    users, movies = {}, {}
    if (directory / "users.dat").is_file():
        for _, (user, gender, age, occupation, zip_code) in _rows(directory / "users.dat", 5, bad_rows):
            users[user] = (gender, age, occupation, zip_code[:3] or None)
    for _, (movie, title, genres) in _rows(directory / "movies.dat", 3, bad_rows):
        year = _YEAR.search(title)
        movies[movie] = (year and year[1], genres)
    ratings = _rows(directory / "ratings.dat", 4, bad_rows)
    no_user, no_movie = (None,) * 4, (None,) * 2
    while rows := list(itertools.islice(ratings, _ROWS)):
        lines = [line for line, _ in rows]
        joined = [(*r, *users.get(r[0], no_user), *movies.get(r[1], no_movie)) for _, r in rows]
        columns = [pa.array(values, pa.string()) for values in zip(*joined, strict=True)]
        yield Chunk(pa.table(columns, COLUMNS), str(directory / "ratings.dat"), lines.__getitem__)


def _rows(path, fields, bad_rows):
    """Yields (line number, fields) of each line that has that many."""
    with path.open(encoding="latin-1", newline="\n") as file:
        for number, line in enumerate(file, 1):
            row = line.rstrip("\r\n").split("::")
            if len(row) == fields:
                yield number, row
            elif line.strip():
                expected = f"a row of {fields} fields (it has {len(row)})"
                bad_rows.add(str(path), number, None, line.rstrip("\r\n"), expected)
