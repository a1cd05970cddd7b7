"""Histories hold what a user liked strictly before, and nothing that would tell the label."""

import numpy as np
import pyarrow as pa
import pytest

from ctr_trainer.data.movielens import Histories
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError
from tests.data.make import CONFIGS, read, run, write

RATINGS = [("1", "10", "5", "100"), ("1", "11", "3", "200"), ("1", "12", "4", "200"), ("1", "13", "5", "300")]


@pytest.fixture
def spec():
    return FeatureSpec.load(CONFIGS / "movielens_history.toml")


def test_only_what_was_liked_earlier_is_in_a_history():
    histories = Histories([*RATINGS, ("2", "99", "5", "50")], "liked")
    assert histories.before("1", "100") == []
    assert histories.before("1", "200") == ["10"]  # not 12, liked in the same second, and not 11, which was not liked
    assert histories.before("1", "300") == ["10", "12"]
    assert histories.before("1", "301") == ["10", "12", "13"]
    assert histories.before("3", "301") == []


def test_a_history_is_in_the_order_of_time_whatever_the_files_order():
    assert Histories(RATINGS[::-1], "liked").before("1", "301") == ["10", "12", "13"]


def test_stars_are_all_earlier_ratings():
    histories = Histories(RATINGS, "stars")
    assert histories.before("1", "200") == ["5"]
    assert sorted(histories.before("1", "300")) == ["3", "4", "5"]


def test_the_newest_are_kept():
    assert Histories(RATINGS, "liked", length=2).before("1", "301") == ["12", "13"]


def test_conversion_makes_sequences_that_share_the_movies_keys(spec, tmp_path):
    rows = [(*row[:3], row[3]) for row in RATINGS] + [("2", "13", "4", "400"), ("2", "10", "1", "500")]
    write(tmp_path / "ratings.dat", "".join("::".join(row) + "\n" for row in rows))
    write(tmp_path / "movies.dat", "".join(f"{movie}::A (2000)::Comedy\n" for movie in (10, 11, 12, 13)))
    run("movielens", tmp_path, tmp_path / "out", spec)
    movie = dict(zip(("10", "12", "13"), keys("movie_id", pa.array(["10", "12", "13"])).tolist(), strict=True))
    expected = [[], [movie["10"]], [movie["10"]], [movie["10"], movie["12"]], [], [movie["13"]]]
    assert read(tmp_path / "out")["liked"].to_pylist() == expected


def test_a_rating_without_a_time_is_named(spec, tmp_path):
    write(tmp_path / "ratings.dat", "1::10::4::100\n1::10::4::noon\n")
    write(tmp_path / "movies.dat", "10::A (2000)::Comedy\n")
    with pytest.raises(UserError, match="ratings.dat, line 2, column 'timestamp': 'noon'"):
        run("movielens", tmp_path, tmp_path / "out", spec)
    assert run("movielens", tmp_path, tmp_path / "out", spec, max_bad_rows=1)["bad_rows"] == 1


def test_the_histories_of_the_real_data_equal_a_plain_count(movielens, spec, tmp_path):
    """A history has, of 200 ratings, the newest 20 that the user rated 4 or better in an earlier second."""
    run("movielens", movielens, tmp_path / "out", spec)
    table = read(tmp_path / "out")
    lines = (movielens / "ratings.dat").read_text().splitlines()
    ratings = np.array([line.split("::") for line in lines], np.int64)
    user, movie, rating, time = ratings.T
    for row in np.random.default_rng(0).integers(0, len(ratings), 200):
        liked = np.flatnonzero((user == user[row]) & (rating >= 4) & (time < time[row]))
        liked = liked[np.argsort(time[liked], kind="stable")][-20:]
        expected = keys("movie_id", pa.array(movie[liked].astype(str).tolist(), pa.string())).tolist()
        assert table["liked"][int(row)].as_py() == expected
        before = np.flatnonzero((user == user[row]) & (time < time[row]))
        before = before[np.argsort(time[before], kind="stable")][-20:]
        stars = keys("stars", pa.array(rating[before].astype(str).tolist(), pa.string())).tolist()
        assert table["stars"][int(row)].as_py() == stars
