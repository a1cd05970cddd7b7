"""The `movielens` format: joins the files of MovieLens-1M or MovieLens-10M, which are separated by `::`."""

import bisect
import collections
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from ctr_trainer.data import typed
from ctr_trainer.data.blocks import BadRowSink, Chunk
from ctr_trainer.data.source import Input
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.messages.errors import UserError

COLUMNS = (
    "user_id", "movie_id", "rating", "timestamp", "gender", "age", "occupation", "zip3", "year", "genres",
)  # fmt: skip
FILES = ("ratings.dat", "movies.dat", "users.dat")  # Only MovieLens-1M has users.dat.
Row = tuple[int, list[str]]  # (line number, fields).
_ROWS = 100_000
_YEAR = re.compile(r"\((\d{4})\)\s*$")


# Column -> f(movie, rating), which returns the value of an earlier rating in the history, or None for no value.
HISTORIES: dict[str, Callable[[str, str], str | None]] = {
    "liked": lambda movie, rating: movie if float(rating) >= 4 else None,
    "stars": lambda movie, rating: rating,
}


class Histories:
    """The values of one history column for each user, sorted by time.

    The history of an example has the values of strictly earlier ratings. It includes neither the example itself nor
    other ratings in the same second, because their order is unknown.

    Args:
      ratings: iterable of (user, movie, rating, timestamp), strings, in any order. Rows whose rating or timestamp is
        not a number are ignored here; `read` reports them.
      length: number of newest values to return; None for all.

    Caveat: all values are held in memory, about 100 bytes per value.
    """

    def __init__(self, ratings: Iterable[Sequence[str]], column: str, length: int | None = None) -> None:
        self._length = length
        events, value_of = collections.defaultdict(list), HISTORIES[column]
        for user, movie, rating, timestamp in ratings:
            if is_number(rating) and is_number(timestamp):
                value = value_of(movie, rating)
                if value is not None:
                    events[user].append((float(timestamp), value))
        self._times, self._values = {}, {}
        for user, of_user in events.items():
            of_user.sort(key=lambda event: event[0])  # The sort is stable: equal times keep the order of the file.
            self._times[user] = [time for time, _ in of_user]
            self._values[user] = [value for _, value in of_user]

    def before(self, user: str, timestamp: str) -> list[str]:
        """Returns the user's values before a time, the oldest first."""
        end = bisect.bisect_left(self._times.get(user, ()), float(timestamp))
        start = max(0, end - self._length) if self._length else 0
        return self._values.get(user, [])[start:end]


def is_number(text: str) -> bool:
    """Whether a text is a number other than NaN."""
    try:
        return float(text) == float(text)
    except ValueError:
        return False


def read(source: Input, spec: FeatureSpec, bad_rows: BadRowSink, time: str | None = None) -> Iterator[Chunk]:
    """Yields Chunks of `COLUMNS`. Each row is a rating with the columns of its user and movie, as strings.

    `zip3` is the first three characters of the zip code, `year` is the number in brackets at the end of the title, and
    `genres` are separated by `|`. The columns of a user or movie are null if its file has no entry for it.
    MovieLens-10M has no users.dat.

    If the spec uses them, two more columns have the user's earlier ratings, the oldest first, separated by `|`:
    `liked`, the movies rated 4 or better, and `stars`, all ratings; see `Histories`. Each of these columns requires
    another pass over the ratings.

    A `blocks.SourceReader`; `source` is the directory of ratings.dat, movies.dat and, for MovieLens-1M, users.dat.
    Titles may be in any encoding; the other fields are UTF-8.
    """
    directory = path_of(source[0] if isinstance(source, (list, tuple)) and len(source) == 1 else source)
    for name in ("ratings.dat", "movies.dat"):
        if not (directory / name).is_file():
            raise UserError(f"{directory}: has no {name}; the input of format movielens is MovieLens's directory")
    wanted = typed.uses(spec, time)
    typed.check(wanted, (*COLUMNS, *HISTORIES), str(directory / "ratings.dat"), spec)
    users, movies = {}, {}
    if (directory / "users.dat").is_file():
        for _, (user, gender, age, occupation, zip_code) in _rows(directory / "users.dat", 5, bad_rows):
            users[user] = (gender, age, occupation, zip_code[:3] or None)
    for _, (movie, title, genres) in _rows(directory / "movies.dat", 3, bad_rows):
        year = _YEAR.search(title)
        movies[movie] = (year and year[1], genres)
    path = directory / "ratings.dat"
    histories = _histories(path, spec)
    ratings = _rows(path, 4, bad_rows)
    if histories:
        ratings = _timed(ratings, path, bad_rows)
    no_user, no_movie = (None,) * 4, (None,) * 2
    while rows := list(itertools.islice(ratings, _ROWS)):
        lines = [line for line, _ in rows]
        joined = [(*r, *users.get(r[0], no_user), *movies.get(r[1], no_movie)) for _, r in rows]
        columns = [_bytes(values) for values in zip(*joined, strict=True)]
        table = pa.table(columns, COLUMNS)
        for column, history in histories.items():
            values = ["|".join(history.before(user, timestamp)) or None for _, (user, _, _, timestamp) in rows]
            table = table.append_column(column, _bytes(values))
        yield Chunk(table, str(path), lines.__getitem__)


def _bytes(values: Iterable[str | None]) -> pa.Array:
    return pa.array([value and value.encode(errors="surrogateescape") for value in values], pa.binary())


def _histories(path: Path, spec: FeatureSpec) -> dict[str, Histories]:
    """Returns the `Histories` for each column of `HISTORIES` that the spec's features need."""
    found = {}
    for column in HISTORIES:
        features = [f for f in spec.sparse if f.column == column]
        if features:
            newest = all(f.keeps_last and f.max_length for f in features)
            ratings = (fields for _, fields in _rows(path, 4))
            length = max(f.max_length for f in features) if newest else None
            found[column] = Histories(ratings, column, length)
    return found


def _timed(ratings: Iterable[Row], path: Path, bad_rows: BadRowSink) -> Iterator[Row]:
    """Yields the ratings with a valid time. Without a time, it is unknown which ratings are earlier."""
    for line, fields in ratings:
        if is_number(fields[3]):
            yield line, fields
        else:
            bad_rows.add(str(path), line, "timestamp", fields[3], "a number, which the history columns need")


def _rows(path: Path, fields: int, bad_rows: BadRowSink | None = None) -> Iterator[Row]:
    """Yields (line number, fields) for each line with `fields` fields. Adds other lines to `bad_rows`, if given."""
    with path.local_file() as local, local.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for number, line in enumerate(file, 1):
            row = line.rstrip("\r\n").split("::")
            if len(row) == fields:
                yield number, row
            elif line.strip() and bad_rows:
                expected = f"a row of {fields} fields (it has {len(row)})"
                bad_rows.add(str(path), number, None, line.rstrip("\r\n"), expected)
