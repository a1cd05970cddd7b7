import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from ctr_trainer.features.fingerprint import LONGEST, fingerprints
from ctr_trainer.features.hashing import graph_keys, keys

RNG = np.random.default_rng(0)
# Every length from none to beyond the longest, so that each branch and each boundary is met.
TEXTS = [RNG.bytes(length) for length in range(LONGEST + 40) for _ in range(3)]


def _expected(texts):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(tf.bitcast(tf.fingerprint(tf.constant(texts), method="farmhash64"), tf.int64))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("prefix", [b"", b"item\x1f"])
def test_short_texts_have_tensorflows_fingerprints_and_long_ones_are_named(kind, prefix):
    hashed, too_long = fingerprints(prefix, pa.array(TEXTS, kind))
    assert too_long.tolist() == [len(prefix) + len(text) > LONGEST for text in TEXTS]
    np.testing.assert_array_equal(hashed[~too_long], _expected([prefix + text for text in TEXTS])[~too_long])
    assert not hashed[too_long].any()


def test_a_slice_is_hashed_from_its_own_start_and_no_value_is_none():
    values = pa.array([b"a", b"bc", b"", b"def"])
    whole, _ = fingerprints(b"s", values)
    np.testing.assert_array_equal(fingerprints(b"s", values.slice(1, 2))[0], whole[1:3])
    assert len(fingerprints(b"s", values.slice(4))[0]) == len(fingerprints(b"s", pa.array([], pa.binary()))[0]) == 0


@pytest.mark.parametrize(
    "slot", ["c", "a slot whose name alone is longer than what is hashed at a time, and then some"]
)
def test_keys_of_any_length_are_those_of_an_exported_graph(slot):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        expected = session.run(graph_keys(slot, tf.constant([*TEXTS, b""])))
    np.testing.assert_array_equal(keys(slot, pa.array([*TEXTS, None])), expected)
