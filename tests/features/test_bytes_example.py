import pyarrow as pa
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ctr_trainer.features import hashing


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


def test_a_value_that_has_no_room_begins_the_next_message_and_a_longer_one_gets_its_own():
    columns = [(b"-", pa.array([b"aaaa", b"bb", b"c" * 200])), (b"+", pa.array([b"d"]))]
    # -aaaa takes 7 of the 15 bytes; -bb wants 3 and up to 6 before them.
    assert values(hashing.serialized_examples(columns, room=15)) == [[b"-aaaa"], [b"-bb"], [b"-" + b"c" * 200], [b"+d"]]


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=30), st.binary(max_size=3), st.integers(1, 2000))
def test_messages_hold_what_they_were_made_of(texts, prefix, room):
    found = values(hashing.serialized_examples([(prefix, pa.array(texts))], room))
    assert [value for message in found for value in message] == [prefix + text for text in texts]
