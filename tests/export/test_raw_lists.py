import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.hashing import keys
from ctr_trainer.serving.export.raw_keys import RawLists


def evaluate(make, feature, rows, **options):
    """Evaluates `make(RawLists)` on lists that are padded with ""."""
    longest = max(map(len, rows))
    padded = [row + [""] * (longest - len(row)) for row in rows]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = tf.reshape(tf.constant(padded, tf.string), [len(rows), longest])
        return session.run(make(RawLists(feature, values, **options)))


def hashed(*values):
    return keys("f", pa.array(values, pa.binary())).tolist()


def sequence(**options):
    return SparseFeature("f", "f", 2, "f", combiner="none", max_length=2, **options)


def test_a_sequence_is_aligned_with_its_newest_values():
    rows = [["a", "b", "c"], ["", "d"], []]
    aligned = evaluate(RawLists.aligned, sequence(), rows)
    assert aligned.tolist() == [hashed("b", "c"), [*hashed("d"), 0], [0, 0]]
    aligned = evaluate(RawLists.aligned, sequence(keep="first", missing="own"), rows)
    assert aligned.tolist() == [hashed("a", "b"), [*hashed("d"), 0], [*hashed(""), 0]]


def test_no_list_may_have_a_value():
    assert evaluate(RawLists.aligned, sequence(), [[], []]).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("combiner", "first", "alone"),
    [
        ("sum", [1, 2, 0.5], 3),
        ("mean", [1 / 3.5, 2 / 3.5, 0.5 / 3.5], 1),
        ("sqrtn", np.divide([1, 2, 0.5], 5.25**0.5), 1),
    ],
)
def test_weights_are_parsed_as_conversion_does(combiner, first, alone):
    feature = SparseFeature("f", "f", 2, "f", combiner=combiner, weight_separator=":")
    rows = [[b"a", b"x:y:2", b"\xff\n:0.5"], [b":7", b"b:3"]]
    lists = evaluate(lambda lists: (lists.keys, lists.coefficients()), feature, rows)
    assert lists[0].tolist() == [hashed(b"a", b"x:y", b"\xff\n"), [0, *hashed(b"b"), 0]]
    np.testing.assert_allclose(lists[1], [first, [0, alone, 0]], rtol=1e-6)


def test_a_null_value_of_the_source_is_none_where_it_stands_alone():
    feature = SparseFeature("f", "f", 2, "f", combiner="sum")
    found = evaluate(lambda lists: lists.keys, feature, [["?"], ["?", "a"]], null_values=("", "?"))
    assert found.tolist() == [[0, 0], hashed("?", "a")]
