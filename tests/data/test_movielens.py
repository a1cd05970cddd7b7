"""examples/movielens/prepare.py turns the files of MovieLens into Parquet, which is converted like other Parquet."""

import importlib.util
import itertools
import pathlib

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctr_trainer.features.spec import FeatureSpec
from tests.data.make import read, run, write

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "movielens"
RATINGS = 100_000


@pytest.fixture(scope="module")
def prepare():
    spec = importlib.util.spec_from_file_location("prepare_movielens", EXAMPLE / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.prepare


@pytest.fixture(scope="module")
def ratings(real_data, prepare, tmp_path_factory):
    """The Parquet file of the first real ratings, and these ratings as int64[n, 4]."""
    source, directory = real_data / "movielens", tmp_path_factory.mktemp("movielens")
    with open(source / "ratings.dat") as file:
        lines = list(itertools.islice(file, RATINGS))
    (directory / "ratings.dat").write_text("".join(lines))
    for name in ("users.dat", "movies.dat"):
        (directory / name).symlink_to(source / name)
    prepare(directory, directory / "out.parquet")
    return directory / "out.parquet", np.array([line.split("::") for line in lines], np.int64)


def test_users_movies_and_earlier_ratings_are_joined_to_a_rating(tmp_path, prepare):
    rows = ["1::10::5::100", "1::11::3::200", "1::12::4::200", "1::13::5::300", "2::13::4::50", "3::99::1::60"]
    write(tmp_path / "ratings.dat", "\n".join(rows[::-1]) + "\n")
    write(tmp_path / "users.dat", "1::F::25::7::48067\n2::M::1::0::98\n")
    movies = "10::Am\xe9lie: (a) (2001)::Comedy|Romance\n11::No year::Drama\n12::B (2002)::\n13::C (2003)::War\n"
    write(tmp_path / "movies.dat", movies.encode("latin-1"))
    prepare(tmp_path, tmp_path / "new" / "out.parquet")
    table = pq.read_table(tmp_path / "new" / "out.parquet").to_pylist()[::-1]
    assert ["::".join(row[name] for name in ("user_id", "movie_id", "rating", "timestamp")) for row in table] == rows
    for name, values in {
        "gender": ["F", "F", "F", "F", "M", None],
        "zip3": ["480", "480", "480", "480", "98", None],
        "year": ["2001", None, "2002", "2003", "2003", None],
        "genres": ["Comedy|Romance", "Drama", "", "War", "War", None],
        # Neither the ratings of the same second nor a movie that was not liked.
        "liked": [None, "10", "10", "10|12", None, None],
    }.items():
        assert [row[name] for row in table] == values, name
    assert [row["stars"] and sorted(row["stars"]) for row in table[:4]] == [None, ["5"], ["5"], sorted("5|3|4")]


def test_a_line_of_other_fields_is_named(tmp_path, prepare):
    write(tmp_path / "ratings.dat", "1::10::4::100\n1::10::4\n")
    write(tmp_path / "movies.dat", "10::A (2000)::Comedy\n")
    with pytest.raises(SystemExit, match="ratings.dat, line 2: it has 3 fields; expected 4"):
        prepare(tmp_path, tmp_path / "out.parquet")


@pytest.mark.parametrize("kind", ["random", "time"])
def test_parts_equal_the_parts_of_the_peers_measurements(ratings, tmp_path, caplog, kind):
    source, found = ratings
    split = "random:0.8,0.1,0.1" if kind == "random" else "time:0.8,0.1,0.1:timestamp"
    parts = run("parquet", source, tmp_path / "out", FeatureSpec.load(EXAMPLE / "movielens.toml"), split=split)["parts"]
    n = len(found)
    order = np.random.default_rng(2026).permutation(n) if kind == "random" else np.argsort(found[:, 3], kind="stable")
    for part, rows in zip(parts, np.split(order, [int(n * 0.8), int(n * 0.9)]), strict=True):
        table, wanted = read(tmp_path / "out" / part), found[np.sort(rows)]  # A part keeps the order of the file.
        for at, name in enumerate(("user_id", "movie_id")):
            assert np.array_equal(np.array(table["id:" + name].to_pylist(), np.int64), wanted[:, at])
        assert np.array_equal(table["label"].to_numpy(), wanted[:, 2] >= 4)
    assert parts["train"].distinct["genres"] == 18 and parts["train"].distinct["gender"] == 2
    assert "leak" not in caplog.text


def test_the_histories_of_the_real_data_equal_a_plain_count(ratings):
    table = pq.read_table(ratings[0], columns=["liked", "stars"]).to_pylist()
    user, movie, rating, time = ratings[1].T
    for row in np.random.default_rng(0).integers(0, RATINGS, 200):
        before = np.flatnonzero((user == user[row]) & (time < time[row]))
        before = before[np.argsort(time[before], kind="stable")]
        liked = before[rating[before] >= 4]
        assert (table[row]["liked"] or "") == "|".join(map(str, movie[liked]))
        assert (table[row]["stars"] or "") == "|".join(map(str, rating[before]))


@pytest.mark.parametrize("name", ["movielens", "history", "means"])
def test_its_specs_survive_a_round_trip_as_a_dict(name):
    spec = FeatureSpec.load(EXAMPLE / f"{name}.toml")
    assert FeatureSpec.from_dict(spec.to_dict()) == spec
