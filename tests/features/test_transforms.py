"""Numbers and times as features: transformations, buckets, and what is derived."""

import datetime
import math

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from ctr_trainer.features.columns import DenseFeature, Label, SparseFeature
from ctr_trainer.features.hashing import Buckets, keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import dense_transform
from ctr_trainer.features.times import HOUR, LOG_SQUARED, WEEKDAY, WEEKEND, derived, graph_derived, seconds
from ctr_trainer.system.messages.errors import UserError

STATISTICS = {"x": dict(mean=2.0, std=4.0, min=-1.0, max=9.0)}
PIECES = {"x": dict(mean=4.0, std=4.0, min=0.0, max=10.0, boundaries=[2.0, 6.0])}


def transformed(values, transform, default=0.0, statistics=STATISTICS):
    spec = FeatureSpec("s", Label("y"), (DenseFeature("x", "x", transform, default),), ())
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dense = tf.constant(np.reshape(values, [-1, 1]), tf.float32)
        return session.run(dense_transform(dense, spec, statistics))[:, 0]


@pytest.mark.parametrize(
    ("transform", "values", "wanted"),
    [
        ("none", [1.5, math.nan], [1.5, 7]),
        ("log1p", [math.e - 1, 1 - math.e, 0], [1, -1, 0]),
        ("standardize", [2, 6, -2], [0, 1, -1]),
        ("minmax", [-1, 9, 4, 19], [0, 1, 0.5, 2]),
    ],
)
def test_a_transform_fills_missing_values_and_is_as_by_hand(transform, values, wanted):
    np.testing.assert_allclose(transformed(values, transform, default=7), wanted, rtol=1e-6)


def test_values_are_clipped_after_the_default_and_before_the_transform():
    features = (
        DenseFeature("x", "x", "standardize", default=100, clip=(0, 10)),
        DenseFeature("y", "y", "log1p", clip=(-math.inf, math.e - 1)),
        DenseFeature("z", "z"),
    )
    spec = FeatureSpec("s", Label("label"), features, ())
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dense = tf.constant([[-5, 99, 99], [math.nan, 1 - math.e, -99], [6, 0, 0]], tf.float32)
        out = session.run(dense_transform(dense, spec, STATISTICS))
    np.testing.assert_allclose(out, [[-0.5, 1, 99], [2, -1, -99], [1, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize("transform", ["standardize", "minmax"])
def test_a_constant_feature_becomes_zero(transform):
    constant = {"x": dict(mean=3.0, std=0.0, min=3.0, max=3.0)}
    assert transformed([3, 5], transform, statistics=constant).tolist() == [0, 0]


def piecewise(values, statistics=PIECES, others=(), default=0.0):
    """Returns the columns of `x`, of which `values` are, and of other features."""
    features = (*others, DenseFeature("x", "x", "piecewise_linear", default, pieces=9))
    spec = FeatureSpec("s", Label("y"), features, ())
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dense = tf.constant(np.reshape(values, [-1, len(features)]), tf.float32)
        return session.run(dense_transform(dense, spec, statistics)).tolist()


def test_a_number_fills_its_pieces_from_the_lowest_on():
    found = piecewise([0, 1, 2, 3, 6, 7, 10])
    assert found == [[0, 0, 0], [0.5, 0, 0], [1, 0, 0], [1, 0.25, 0], [1, 1, 0], [1, 1, 0.25], [1, 1, 1]]
    # Pieces are constant outside of the training data.
    assert piecewise([-5, 1e9, -math.inf, math.inf]) == [[0, 0, 0], [1, 1, 1]] * 2
    assert [piecewise([math.nan]), piecewise([math.nan], default=4)] == [[[0, 0, 0]], [[1, 0.5, 0]]]


@pytest.mark.parametrize(
    ("boundaries", "low", "high", "wanted"),
    [
        ([], 3.0, 3.0, [0]),  # constant
        ([], 0.0, 0.0, [0]),  # always missing
        ([4.0], 2.0, 4.0, [0.5]),  # two values
        ([3.0, 4.0], 2.0, 4.0, [1, 0]),  # three values
        ([], 2.0, 4.0, [0.5]),  # nearly all values are the lowest one
    ],
)
def test_few_different_values_have_fewer_pieces(boundaries, low, high, wanted):
    statistics = {"x": dict(mean=3.0, std=1.0, min=low, max=high, boundaries=boundaries)}
    assert piecewise([3], statistics) == [wanted]


def test_pieces_stand_among_the_columns_of_other_features():
    others = (DenseFeature("a", "a"), DenseFeature("b", "b", "standardize"))
    statistics = {**PIECES, "b": dict(mean=4.0, std=2.0, min=0.0, max=9.0)}
    assert piecewise([[-7, 10, 3], [99, 0, 8]], statistics, others) == [[-7, 3, 1, 0.25, 0], [99, -2, 1, 1, 0.5]]


@pytest.mark.parametrize(
    ("transform", "statistics"), [("standardize", None), ("minmax", {"other": {}}), ("piecewise_linear", STATISTICS)]
)
def test_missing_statistics_are_refused(transform, statistics):
    spec = FeatureSpec("s", Label("y"), (DenseFeature("x", "x", transform, pieces=9 * transform.startswith("p")),), ())
    with tf.Graph().as_default(), pytest.raises(UserError, match=f"'x'.*{transform}.*convert the data set again"):
        dense_transform(tf.constant([[1.0]]), spec, statistics)


VALUES = np.float32([-5, 0.5, 0.7, 1, 10, 1e9, np.nan])


@pytest.mark.parametrize(("missing", "last"), [(None, [0]), ("zero", [0]), ("own", keys("slot", pa.array([""])))])
def test_a_number_has_the_key_of_its_buckets_number_in_an_exported_graph_too(missing, last):
    feature = SparseFeature("f", "f", 4, "slot", buckets=(0.5, 1, 10), missing=missing)
    wanted = [*keys("slot", pa.array(["0", "1", "1", "2", "3", "3"])), *last]
    buckets = Buckets(feature, {})
    assert buckets.keys(VALUES).tolist() == wanted
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert session.run(buckets.graph_keys(tf.constant(VALUES))).tolist() == wanted


def test_boundaries_of_quantiles_come_from_the_statistics():
    feature = SparseFeature("f", "f", 4, "f", quantiles=3)
    found = Buckets(feature, {"f": {"boundaries": [2.0, 3.0]}}).keys(np.float32([1, 2, 3]))
    assert found.tolist() == keys("f", pa.array(["0", "1", "2"])).tolist()
    # Where no training row had a value there is one bucket.
    assert Buckets(feature, {"f": {"boundaries": []}}).keys(np.float32([1])).tolist() == found[:1].tolist()
    with pytest.raises(UserError, match="'f'.*'quantiles' needs boundaries.*convert the data set again"):
        Buckets(feature, {"f": {"mean": 1.0}})


UTC = datetime.timezone.utc
GOOD = {
    "2024-01-31": datetime.datetime(2024, 1, 31),
    "2024-02-29 08:30": datetime.datetime(2024, 2, 29, 8, 30),
    "2000-12-31T23:59:59": datetime.datetime(2000, 12, 31, 23, 59, 59),
    "1969-12-31 23:00:00.5": datetime.datetime(1969, 12, 31, 23, 0, 0, 500_000),
    "2024-03-01T00:30:00Z": datetime.datetime(2024, 3, 1, 0, 30),
    "2024-03-01 00:30:00.250000+02:00": datetime.datetime(2024, 2, 29, 22, 30, 0, 250_000),
    "2023-12-31 23:30:00-0130": datetime.datetime(2024, 1, 1, 1, 0),
    "14102100": datetime.datetime(2014, 10, 21, 0),
    "9010123": datetime.datetime(2009, 1, 1, 23),
    "1700000000": datetime.datetime(2023, 11, 14, 22, 13, 20),
    "1700000000.5": datetime.datetime(2023, 11, 14, 22, 13, 20, 500_000),
    "1700000000123": datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000),
}
BAD = (
    *("2024-02-30", "2023-02-29 08:00", "2024-13-01", "2024-01-01 24:00:00", "14102199", "14132100"),
    *("noon", "-5", "1e9"),
)


@pytest.mark.parametrize("what", [HOUR, WEEKDAY, WEEKEND])
def test_parts_of_times_are_pythons_and_the_graphs_are_the_same(what):
    texts = [*GOOD, *BAD, ""]
    parts = {HOUR: lambda t: t.hour, WEEKDAY: lambda t: t.weekday(), WEEKEND: lambda t: int(t.weekday() > 4)}
    expected = [parts[what](t) for t in GOOD.values()]
    assert len(set(expected)) > 1
    found, bad = derived(pa.array([t.encode() for t in texts] + [None]), what)
    assert found.to_pylist() == expected + [None] * (len(BAD) + 2)
    assert bad.tolist() == [False] * len(GOOD) + [True] * len(BAD) + [False, False]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = session.run(graph_derived(tf.constant(texts), what))
    assert graph.tolist() == [str(e).encode() for e in expected] + [b""] * (len(BAD) + 1)


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%d.%m.%Y %H:%M", "%m-%d-%YT%H:%M:%SZ", "%m/%d/%Y"])
def test_days_and_months_may_stand_before_the_year(form):
    what = ("day_first_" if form.startswith("%d") else "month_first_") + WEEKDAY
    days = [datetime.datetime(2024, 1, 1, 5) + datetime.timedelta(days=29 * i) for i in range(30)]
    texts = [day.strftime(form) for day in days] + ["7/3/2024", "2024-03-07", "32/1/2024", "1/32/2024", "1/2/24"]
    march_or_july = 3 if what.startswith("day") else 2
    expected = [day.weekday() for day in days] + [march_or_july, 3, None, None, None]
    found, _ = derived(pa.array([text.encode() for text in texts]), what)
    assert found.to_pylist() == expected


def test_seconds_are_those_since_1970_in_utc():
    expected = [t.replace(tzinfo=UTC).timestamp() for t in GOOD.values()]
    np.testing.assert_allclose(seconds(pa.array(list(GOOD))), expected, rtol=0, atol=1e-6)


def test_numbers_count_as_their_digits():
    whole = [int(t) for t in GOOD if t.isdigit()]
    expected = seconds(pa.array([str(v) for v in whole]))
    for kind in (pa.int64(), pa.float64()):
        assert seconds(pa.array(whole, kind)).tolist() == expected.tolist()
        assert derived(pa.array([*whole, None], kind), HOUR)[1] is None
    found, bad = derived(pa.array([1e-7, -2.5, 100, math.nan, math.inf]), LOG_SQUARED)
    assert found.to_pylist() == [0, -2, 21, None, None] and bad.tolist() == [False] * 4 + [True]


def test_each_day_of_400_years_is_found_in_the_calendar():
    days = np.arange(-20_000, 130_000, 7)
    texts = pa.array([str(np.datetime64(int(day), "D")) for day in days])
    assert (seconds(texts) == days * 86_400).all()


def test_a_squared_logarithm_is_criteos_bucket():
    buckets = {"-3": -3, "-1.5": -1, "0": 0, "1": 1, "2": 2, "2.5": 0, "3": 1, "4": 1, "5": 2, "100": 21}
    buckets["1000000"] = 190
    bad = ["x", "1e5", "nan", "1234567890123456"]
    texts = [*buckets, *bad, ""]
    found, wrong = derived(pa.array([text.encode() for text in texts] + [None]), LOG_SQUARED)
    assert found.to_pylist() == [*buckets.values(), *[None] * (len(bad) + 2)]
    assert wrong.tolist() == [text in bad for text in texts] + [False]
    x = np.unique(np.geomspace(3, 1e9, 2_000).astype(np.int64))
    assert derived(pa.array(x), LOG_SQUARED)[0].to_pylist() == [math.floor(math.log(each) ** 2) for each in x]
