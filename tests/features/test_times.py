import datetime

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from ctr_trainer.features.times import HOUR, LOG_SQUARED, WEEKDAY, WEEKEND, derived, graph_derived, seconds

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
    "2024-02-30",
    "2023-02-29 08:00",
    "2024-13-01",
    "2024-01-01 24:00:00",
    "14102199",
    "14132100",
    "noon",
    "-5",
    "1e9",
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


def test_seconds_are_those_since_1970_in_utc():
    expected = [t.replace(tzinfo=UTC).timestamp() for t in GOOD.values()]
    np.testing.assert_allclose(seconds(pa.array(list(GOOD))), expected, rtol=0, atol=1e-6)


def test_numbers_count_as_their_digits():
    whole = [int(t) for t in GOOD if t.isdigit()]
    expected = seconds(pa.array([str(v) for v in whole]))
    for kind in (pa.int64(), pa.float64()):
        assert seconds(pa.array(whole, kind)).tolist() == expected.tolist()
        assert derived(pa.array([*whole, None], kind), HOUR)[1] is None


def test_each_day_of_400_years_is_found_in_the_calendar():
    days = np.arange(-20_000, 130_000, 7)
    texts = pa.array([str(np.datetime64(int(day), "D")) for day in days])
    assert (seconds(texts) == days * 86_400).all()


def test_a_squared_logarithm_is_criteos_bucket_and_the_graphs_is_the_same():
    buckets = {
        "-3": -3,
        "-1.5": -1,
        "0": 0,
        "1": 1,
        "2": 2,
        "2.5": 0,
        "3": 1,
        "4": 1,
        "5": 2,
        "100": 21,
        "1000000": 190,
    }
    bad = ["x", "1e5", "nan", "1234567890123456"]
    texts = [*buckets, *bad, ""]
    found, wrong = derived(pa.array([text.encode() for text in texts] + [None]), LOG_SQUARED)
    assert found.to_pylist() == [*buckets.values(), *[None] * (len(bad) + 2)]
    assert wrong.tolist() == [text in bad for text in texts] + [False]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = session.run(graph_derived(tf.constant(texts), LOG_SQUARED))
    assert graph.tolist() == [str(bucket).encode() for bucket in buckets.values()] + [b""] * (len(bad) + 1)


def test_squared_logarithms_of_all_numbers_are_the_same_in_the_graph():
    x = np.unique(np.geomspace(1, 1e9, 20_000).astype(np.int64))
    found, _ = derived(pa.array(x), LOG_SQUARED)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = session.run(graph_derived(tf.constant([str(each) for each in x]), LOG_SQUARED))
    assert graph.astype(np.int64).tolist() == found.to_pylist()
