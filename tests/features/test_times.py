import datetime

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from ctr_trainer.features.times import HOUR, WEEKDAY, derived, graph_derived, seconds

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


@pytest.mark.parametrize("what", [HOUR, WEEKDAY])
def test_hour_and_weekday_are_pythons_and_the_graphs_are_the_same(what):
    texts = [*GOOD, *BAD, ""]
    expected = [t.hour if what == HOUR else t.weekday() for t in GOOD.values()]
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
