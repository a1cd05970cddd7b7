"""Turns the files of MovieLens-1M into one Parquet file, which `ctr_trainer convert --format=parquet` reads.

    python examples/movielens/prepare.py ml-1m data/movielens.parquet

Each row is a rating with the columns of its user and its movie. All columns are texts. `zip3` is the first three
characters of the zip code, `year` the number in brackets at the end of the title, and `genres` are separated by `|`.
MovieLens-10M, which has no users.dat, can be read too. Columns that a file does not have are null.

Two columns have the user's earlier ratings, the oldest first, separated by `|`: `liked`, the movies rated 4 or better,
and `stars`, all ratings. They contain ratings of strictly earlier seconds only: neither the row itself nor other
ratings in the same second, because their order is unknown.
"""

import argparse
import bisect
import collections
import itertools
import pathlib
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = (
    "user_id", "movie_id", "rating", "timestamp", "gender", "age", "occupation", "zip3", "year", "genres", "liked",
    "stars",
)  # fmt: skip
ROWS = 50_000  # Rows per row group.
LIKED = 4  # Least rating of a movie that the user likes.
YEAR = re.compile(r"\((\d{4})\)\s*$")


class History:
    """The values of one user's ratings, sorted by time."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._values: list[str] = []

    def add(self, time: str, value: str) -> None:
        """Adds the value of a rating that is not older than the previous one."""
        self._times.append(float(time))
        self._values.append(value)

    def before(self, time: str) -> str | None:
        """Returns the values before a time; None if there are none."""
        return "|".join(self._values[: bisect.bisect_left(self._times, float(time))]) or None


def fields_of(file: pathlib.Path, count: int) -> Iterator[list[str]]:
    """Yields the fields of each line of a file, which `::` separates."""
    with file.open(encoding="latin-1") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.rstrip("\r\n").split("::")
            if len(fields) != count:
                raise SystemExit(f"{file}, line {number}: it has {len(fields)} fields; expected {count}")
            yield fields


def rows_of(directory: pathlib.Path) -> Iterator[tuple[str | None, ...]]:
    """Yields a row of `COLUMNS` for each rating, in the order of the file."""
    users: dict[str, tuple[str | None, ...]] = {}
    if (directory / "users.dat").is_file():
        for user, gender, age, occupation, code in fields_of(directory / "users.dat", 5):
            users[user] = (gender, age, occupation, code[:3] or None)
    movies: dict[str, tuple[str | None, ...]] = {}
    for movie, title, genres in fields_of(directory / "movies.dat", 3):
        year = YEAR.search(title)
        movies[movie] = (year and year[1], genres)
    ratings = list(fields_of(directory / "ratings.dat", 4))
    liked, stars = collections.defaultdict(History), collections.defaultdict(History)
    for user, movie, stars_of_it, time in sorted(ratings, key=lambda rating: float(rating[3])):
        stars[user].add(time, stars_of_it)
        if float(stars_of_it) >= LIKED:
            liked[user].add(time, movie)
    for rating in ratings:
        user, movie, _, time = rating
        about = (*users.get(user, (None,) * 4), *movies.get(movie, (None,) * 2))
        yield *rating, *about, liked[user].before(time), stars[user].before(time)


def prepare(directory: pathlib.Path, output: pathlib.Path) -> None:
    """Writes the Parquet file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    schema, rows = pa.schema([(name, pa.string()) for name in COLUMNS]), rows_of(directory)
    with pq.ParquetWriter(output, schema, compression="zstd") as writer:
        while group := list(itertools.islice(rows, ROWS)):
            columns = [pa.array(values, pa.string()) for values in zip(*group, strict=True)]
            writer.write_table(pa.table(columns, schema))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=pathlib.Path, help="directory with ratings.dat, movies.dat and users.dat")
    parser.add_argument("output", type=pathlib.Path, help="Parquet file to write")
    arguments = parser.parse_args()
    prepare(arguments.directory, arguments.output)
