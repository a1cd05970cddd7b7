"""Messages become rows by the feature spec."""

import json

import numpy as np
import pyarrow as pa
import pytest

from ctr_trainer.data.batch import batch_of
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.live.stream.messages import MessageDecoder
from ctr_trainer.live.stream.source import Message

TOML = """
name = "clicks"

[label]
column = "clicked"

[defaults]
dim = 4

[[dense]]
columns = ["price"]

[[sparse]]
columns = ["user", "item"]

[[sparse]]
name = "level"
column = "price"
buckets = [1, 2]

[[sparse]]
name = "tags"
combiner = "sum"
"""


@pytest.fixture
def decoder(tmp_path):
    (tmp_path / "spec.toml").write_text(TOML)
    return MessageDecoder(FeatureSpec.load(tmp_path / "spec.toml"), {}, "kafka topic clicks")


def messages(*values):
    return [
        Message(0, offset, 1.0, json.dumps(value).encode() if isinstance(value, dict) else value)
        for offset, value in enumerate(values)
    ]


def row(number, **more):
    return {"user": f"u{number}", "item": number, "price": number / 2, "tags": ["a", "b"], "clicked": 1, **more}


def example(value):
    import tensorflow as tf

    def feature(value):
        values = value if isinstance(value, list) else [value]
        if isinstance(values[0], str):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[each.encode() for each in values]))
        if isinstance(values[0], int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    features = tf.train.Features(feature={name: feature(each) for name, each in value.items()})
    return tf.train.Example(features=features).SerializeToString()


def arrow(*values):
    table = pa.Table.from_pylist(list(values))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def keys_of(rows):
    return np.concatenate(list(batch_of(rows, len(rows)).keys.values()), 1)


def equal(*decoded):
    one, other = (batch_of(rows, len(rows)) for rows in decoded)
    np.testing.assert_array_equal(one.dense, other.dense)
    np.testing.assert_array_equal(one.labels, other.labels)
    for name, keys in one.keys.items():
        np.testing.assert_array_equal(keys, other.keys[name])
    for name, bag in one.bags.items():
        np.testing.assert_array_equal(bag.values, other.bags[name].values)
        np.testing.assert_array_equal(np.diff(bag.splits), np.diff(other.bags[name].splits))


def test_an_example_of_any_length_is_not_json(decoder):
    values = [row(1, user="u" * length) for length in range(1, 90)]
    examples = [example(value) for value in values]
    assert any(each.startswith(b"\n{") for each in examples)
    found = decoder.decode(messages(*examples))
    assert not found.bad
    equal(found.rows, decoder.decode(messages(*values)).rows)
    assert len(decoder.decode(messages(b"\n{" + json.dumps(values[0]).encode()[1:])).rows) == 1


def test_formats_make_the_same_rows_and_trained_rows_are_left_out(decoder):
    values = [row(number) for number in range(5)]
    in_json = decoder.decode(messages(*values))
    assert len(in_json.rows) == 5 and not in_json.bad
    equal(in_json.rows, decoder.decode(messages(*map(example, values))).rows)
    in_arrow = decoder.decode(messages(arrow(*values[:3]), arrow(*values[3:])))
    equal(in_json.rows, in_arrow.rows)
    assert in_arrow.messages.tolist() == [0, 0, 0, 1, 1] and in_arrow.places.tolist() == [0, 1, 2, 0, 1]
    mixed = decoder.decode(messages(arrow(values[0], values[1]), values[2], example(values[3])))
    equal(decoder.decode(messages(*values[:4])).rows, mixed.rows)
    rest = decoder.decode(messages(arrow(*values[:3]), values[3]), {0: 2})
    equal(decoder.decode(messages(*values[2:4])).rows, rest.rows)
    assert rest.places.tolist() == [2, 0]


def test_bad_rows_are_named_and_the_others_stay(decoder):
    bad = [b"{", b"", None, b'{"user": 1} {"user": 2}', b"[1]", row(3, price="cheap"), row(4, user={"name": 1})]
    no_label = {name: value for name, value in row(5).items() if name != "clicked"}
    decoded = decoder.decode(messages(row(0), *bad, no_label, row(1)))
    equal(decoder.decode(messages(row(0), row(1))).rows, decoded.rows)
    assert decoded.messages.tolist() == [0, 9]
    assert sorted({each.message for each in decoded.bad}) == list(range(1, 9))
    reasons = {each.message: each.reason for each in decoded.bad}
    assert "not a JSON object" in reasons[1] and "'cheap' is not a finite number" in reasons[6]


def test_a_column_may_change_its_type_or_be_missing_and_a_date_is_a_text(decoder):
    decoded = decoder.decode(messages(row(7), row(7, item="7"), row(7, item=7.0)))
    assert not decoded.bad and len({tuple(keys) for keys in keys_of(decoded.rows)}) == 1
    missing = decoder.decode(messages({"clicked": 0}))
    batch = batch_of(missing.rows, 1)
    assert not missing.bad and np.isnan(batch.dense).all()
    assert batch.bags["tags"].splits.tolist() == [0, 0]
    decoded = decoder.decode(messages(row(0, user="2024-01-31 08:00:00"), row(0, user="2024-01-31")))
    texts = decoder.decode(messages(row(0, user="x"), row(0, user="2024-01-31 08:00:00")))
    np.testing.assert_array_equal(keys_of(decoded.rows)[0], keys_of(texts.rows)[1])
