import numpy as np
import pyarrow as pa
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_trainer.features import hashing


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


def test_a_missing_value_hashes_as_the_empty_string():
    keys = hashing.keys("a", pa.array([None, "", "x"]))
    assert keys[0] == keys[1] != keys[2]
    assert hashing.keys("a", pa.nulls(2, pa.string())).tolist() == [keys[0]] * 2


def test_a_missing_value_has_the_key_0_where_it_is_to_have_none():
    for values in (pa.array([None, "x", ""]), pa.array([None, "x", ""]).dictionary_encode()):
        assert hashing.keys("a", values, missing_has_key=False).tolist() == [
            0,
            hashing.keys("a", pa.array(["x"]))[0],
            0,
        ]
    nulls = pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), pa.array(["x", None]))
    assert hashing.keys("a", nulls, missing_has_key=False).tolist() == [0, hashing.keys("a", pa.array(["x"]))[0], 0]


def test_several_columns_have_the_keys_of_each():
    columns = [("a", pa.array(["x", None, "x"]), True), ("b", pa.array([7, 8, None]), False)]
    found = hashing.keys_of_columns(columns)
    assert found.tolist() == [hashing.keys(*column).tolist() for column in columns]
    assert found[1, 2] == 0 and found[0, 1] != 0


def test_more_values_than_a_call_takes_have_the_keys_of_each(monkeypatch):
    values = pa.array([str(number) for number in range(100)])
    together = hashing.keys_of_columns([("a", values, True), ("b", values, True)])
    monkeypatch.setattr(hashing.serialized_examples, "__defaults__", (64,))  # bytes: 5 to 6 values a call
    assert hashing.keys_of_columns([("a", values, True), ("b", values, True)]).tolist() == together.tolist()


def test_integers_hash_as_their_digits():
    numbers = hashing.keys("a", pa.array([12, -3, None]))
    assert numbers.tolist() == hashing.keys("a", pa.array(["12", "-3", None])).tolist()


def test_the_slot_sets_equal_values_apart():
    assert hashing.keys("a", pa.array(["x"])) != hashing.keys("b", pa.array(["x"]))


def test_chunked_dictionary_and_binary_columns_hash_alike():
    plain = hashing.keys("a", pa.array(["x", "y", None, "x"]))
    chunked = pa.chunked_array([["x", "y"], [None, "x"]])
    for values in (chunked, chunked.dictionary_encode(), chunked.cast(pa.binary())):
        assert hashing.keys("a", values).tolist() == plain.tolist()
    assert hashing.keys("a", pa.array([], pa.string())).shape == (0,)


def test_key_0_is_kept_for_no_value(monkeypatch):
    monkeypatch.setattr(tf, "fingerprint", lambda data, method: tf.zeros([tf.size(data), 8], tf.uint8))
    hashing._hasher.cache_clear()
    try:
        assert hashing.keys("a", pa.array(["x"])).tolist() == [1]
    finally:
        hashing._hasher.cache_clear()


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


def values(messages):
    """Returns the values of each message, parsed by protobuf."""
    return [
        list(tf.train.Example.FromString(message).features.feature[hashing.EXAMPLE_FEATURE].bytes_list.value)
        for message in messages
    ]


def test_the_bytes_of_a_message():
    (message,) = hashing.serialized_examples([(b"a", pa.array([b"x", b""]))])
    bytes_list = b"\x0a\x02ax\x0a\x01a"  # 7 bytes
    entry = b"\x0a\x01v\x12\x09\x0a\x07" + bytes_list  # 14
    assert message == b"\x0a\x10\x0a\x0e" + entry


def test_columns_follow_each_other_each_with_its_prefix_and_null_is_empty():
    columns = [(b"C1-", pa.array([b"x", None])), (b"", pa.array([b"y"], pa.large_binary()))]
    assert values(hashing.serialized_examples(columns)) == [[b"C1-x", b"C1-", b"y"]]


def test_a_slice_has_its_own_values_alone():
    column = pa.array([b"left", b"ab", None, b"right"]).slice(1, 2)
    assert values(hashing.serialized_examples([(b"", column)])) == [[b"ab", b""]]
    assert hashing.byte_lengths(column).tolist() == [2, 0]


def test_a_value_without_room_begins_the_next_message():
    columns = [(b"-", pa.array([b"aaaa", b"bb", b"c" * 200])), (b"+", pa.array([b"d"]))]
    # -aaaa takes 7 of the 15 bytes; -bb wants 3 and up to 6 before them.
    assert values(hashing.serialized_examples(columns, room=15)) == [[b"-aaaa"], [b"-bb"], [b"-" + b"c" * 200], [b"+d"]]


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=30), st.binary(max_size=3), st.integers(1, 2000))
def test_messages_hold_what_they_were_made_of(texts, prefix, room):
    found = values(hashing.serialized_examples([(prefix, pa.array(texts))], room))
    assert [value for message in found for value in message] == [prefix + text for text in texts]
