import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_trainer.features import hashing
from ctr_trainer.features.columns import CrossFeature


def fingerprint(text):
    """Fingerprint64 by another road: TensorFlow's hash bucket op takes the same function modulo the buckets."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(tf.strings.to_hash_bucket_fast([text], 2**62))[0]


def test_a_key_is_the_fingerprint_of_slot_and_value():
    key = hashing.keys("C1", pa.array(["68fd1e64"]))[0]
    assert int(np.uint64(key.view(np.uint64)) % 2**62) == fingerprint(b"C1\x1f68fd1e64")


def test_keys_of_all_time_do_not_change():
    # Saved models and data sets hold these numbers.
    assert hashing.keys("a", pa.array(["b", ""])).tolist() == [-609077389624536054, 7944271733962358688]


def test_a_missing_value_has_the_key_of_the_empty_string_or_0():
    x = hashing.keys("a", pa.array(["x"]))[0]
    nulls = pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), pa.array(["x", None]))
    for values in (pa.array([None, "x", ""]), pa.array([None, "x", ""]).dictionary_encode(), nulls):
        assert hashing.keys("a", values).tolist() == [7944271733962358688, x, 7944271733962358688]
        assert hashing.keys("a", values, missing_has_key=False).tolist() == [0, x, 0]
    assert hashing.keys("a", pa.nulls(2, pa.string())).tolist() == [7944271733962358688] * 2


def test_integers_hash_as_their_digits():
    numbers = hashing.keys("a", pa.array([12, -3, None]))
    assert numbers.tolist() == hashing.keys("a", pa.array(["12", "-3", None])).tolist()


def test_chunked_dictionary_and_binary_columns_hash_alike():
    plain = hashing.keys("a", pa.array(["x", "y", None, "x"]))
    chunked = pa.chunked_array([["x", "y"], [None, "x"]])
    sliced = pa.array(["left", "x", "y", None, "x", "right"]).slice(1, 4)
    for values in (chunked, chunked.dictionary_encode(), chunked.cast(pa.binary()), sliced):
        assert hashing.keys("a", values).tolist() == plain.tolist()
    assert hashing.keys("a", pa.array([], pa.string())).shape == (0,)


def test_key_0_is_kept_for_no_value(monkeypatch):
    monkeypatch.setattr(tf, "fingerprint", lambda data, method: tf.zeros([tf.size(data), 8], tf.uint8))
    hashing.host_function.cache_clear()
    try:
        assert hashing.keys("a", pa.array(["x"])).tolist() == [1]
    finally:
        hashing.host_function.cache_clear()


@settings(deadline=None, max_examples=30)  # A session is made for each example.
@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=8), st.sampled_from(["C1", "f\u00fcr"]))
def test_an_exported_graph_computes_the_same_keys(values, slot):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensor = tf.constant([[v.encode() for v in values]])
        graph = session.run(hashing.graph_keys(slot, tensor))
    assert graph.shape == (1, len(values))
    assert graph[0].tolist() == hashing.keys(slot, pa.array(values)).tolist()


def test_keys_are_pure_within_a_graph_and_with_eager_execution():
    eager = hashing.keys("a", pa.array(["x"]))
    with tf.Graph().as_default() as graph:
        assert hashing.keys("a", pa.array(["x"])) == eager
        assert not graph.get_operations()


def _cross(**options):
    return CrossFeature(name="c", column="", dim=2, slot="c", columns=("a", "b"), **options)


def test_a_cross_is_told_by_its_values_and_their_order():
    values = ["", "a", "b", "ab", "a_b", "a\x1f", "\x1fb", "x" * 100_000, "x" * 100_001]
    both = [(one, other) for one in values for other in values]
    parts = [hashing.keys("v", pa.array(column)) for column in zip(*both, strict=True)]
    found = hashing.cross_keys(_cross(), parts)
    assert len({*found}) == len(both)
    # Saved models hold rows of these keys.
    assert found[:2].tolist() == [8382310018673230969, -8913116077706108689]
    few = hashing.cross_keys(_cross(max_rows=5), parts)
    assert len({*few}) == 5 and not {*few} & {*found}


@pytest.mark.parametrize("max_rows", [0, 3])
def test_a_graph_and_a_context_of_one_key_give_the_same_crosses(max_rows):
    rng, feature = np.random.default_rng(0), _cross(max_rows=max_rows)
    parts = rng.integers(-(2**63), 2**63, (2, 1000))
    parts[0, :10] = parts[1, 5:20] = 0  # Missing values make the cross missing.
    expected = hashing.cross_keys(feature, [*parts])
    assert np.flatnonzero(expected == 0).tolist() == list(range(20))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert session.run(hashing.graph_cross_keys(feature, [*map(tf.constant, parts)])).tolist() == expected.tolist()
        one = hashing.graph_cross_keys(feature, [tf.constant(parts[0, 30:31]), tf.constant(parts[1])])
        shared = hashing.cross_keys(feature, [parts[0, 30].repeat(1000), parts[1]])
        assert session.run(one).tolist() == shared.tolist()
