"""Rows in a message: their codecs, half precision, and rows at any byte, which are checked by their bits."""

import numpy as np
import pytest

from ctr_trainer.embedding.store import row_codec
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.row_codec import CODECS, PLAIN, find_codec
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.settings.setting import declared
from ctr_trainer.system.messages.errors import UserError

_ROWS = np.float32([[1, 1 / 3], [-2, 0], [0, 0]])
_EACH = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def test_codecs_are_found_by_the_names_that_the_flag_takes_and_no_others():
    assert declared(EmbeddingConfig.__dataclass_fields__["sync_compression"]).choices == tuple(CODECS)
    assert [find_codec(name).name for name in CODECS] == ["none", "fp16"]
    assert find_codec(EmbeddingConfig().sync_compression) is PLAIN
    with pytest.raises(UserError, match="sync_compression 'fp8' is not one of none, fp16: give one of these"):
        find_codec("fp8")


@_EACH
@pytest.mark.parametrize("rows", [_ROWS, _ROWS[:0], np.asfortranarray(_ROWS)], ids=["some", "none", "by_column"])
def test_rows_come_back_as_they_went_or_rounded(codec, rows):
    encoded = codec.encode(rows)
    dtype, columns = codec.schema(2)
    assert encoded.dtype == dtype
    assert encoded.shape == (len(rows), columns)
    decoded = codec.decode(encoded)
    assert decoded.dtype == np.float32
    assert decoded.flags.c_contiguous
    third = np.float32(1 / 3) if codec.is_exact else np.float32(np.float16(1 / 3))
    np.testing.assert_array_equal(decoded, np.float32([[1, third], [-2, 0], [0, 0]])[: len(rows)])


@_EACH
def test_rows_of_a_message_that_lie_at_an_odd_byte_are_decoded(codec):
    encoded = codec.encode(_ROWS)
    raw = np.frombuffer(b"." + encoded.tobytes(), encoded.dtype, offset=1).reshape(encoded.shape)
    assert not raw.flags.aligned
    np.testing.assert_array_equal(codec.decode(raw), codec.decode(encoded))


def test_the_plain_codec_copies_nothing_and_fp16_halves_the_bytes():
    assert PLAIN.encode(_ROWS) is _ROWS
    assert PLAIN.decode(_ROWS) is _ROWS
    sizes = {name: codec.encode(np.zeros((1, 17), np.float32)).nbytes for name, codec in CODECS.items()}
    assert sizes == {"none": 17 * 4, "fp16": (1 + 17) * 2}


def test_a_row_is_scaled_by_its_own_power_of_two():
    # 3 * 2**-20 is 0.75 * 2**-18: times 2**32 it is 12288, within [2**13, 2**14).
    packed = row_codec.pack(np.float32([[3 * 2.0**-20, -(2.0**-20)]]))
    assert packed.dtype == np.float16
    assert packed.tolist() == [[-32, 12288, -4096]]


def test_fp16_returns_values_of_few_bits_exactly_and_others_within_the_bound():
    rows = np.float32([[1, -2, 0], [3e4 * 2**20, 1.5, 0], [2.0**-100, 0, 0], [2.0**126, 2.0**100, 1], [0, 0, 0]])
    rows[1, 0], rows[3, 2] = 2.0**30, 0
    np.testing.assert_array_equal(row_codec.unpack(row_codec.pack(rows)), rows)
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((1000, 8)) * 10.0 ** rng.integers(-30, 30, (1000, 8))).astype(np.float32)
    error = np.abs(row_codec.unpack(row_codec.pack(rows)) - rows)
    assert (error <= 2.0**-11 * np.abs(rows) + 2.0**-38 * np.abs(rows).max(axis=1, keepdims=True)).all()


@pytest.mark.parametrize("power", [np.nan, np.inf, -np.inf, 0.5, 115, -127])
def test_a_damaged_power_makes_the_row_not_finite_and_a_damaged_value_itself(power):
    packed = row_codec.pack(np.ones((2, 2), np.float32))
    packed[1, 0] = power
    np.testing.assert_array_equal(np.isfinite(row_codec.unpack(packed)).all(axis=1), [True, False])
    if not np.isfinite(power):
        packed[0, 2] = power
        np.testing.assert_array_equal(np.isfinite(row_codec.unpack(packed))[0], [True, False])


def test_values_are_rounded_to_the_nearest_float16_and_ties_to_even():
    # Of a row whose largest value is in [2**13, 2**14), so that its power is 0.
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 100_000, dtype=np.uint32)
    ties = (bits & np.uint32(0xFFFFE000)) | np.uint32(0x1000)
    values = np.concatenate([bits, ties]).view(np.float32)
    values = values[np.abs(values) < 2**14][:, None]  # Not NaN either, and with the subnormal.
    rows = np.concatenate([np.full_like(values, 2**13), values], axis=1)
    packed = row_codec.pack(rows)
    np.testing.assert_array_equal(packed[:, 0], 0)
    np.testing.assert_array_equal(packed[:, 2].view(np.uint16), rows[:, 1].astype(np.float16).view(np.uint16))
    np.testing.assert_array_equal(row_codec.unpack(packed)[:, 1], packed[:, 2].astype(np.float32))


CONFIG = TableConfig("t", (2, 1), (0.0, 0.0), "sgd")


def _at_an_odd_byte(rows):
    raw = np.zeros(rows.nbytes + 1, np.uint8)
    out = raw[1:].view(rows.dtype).reshape(rows.shape)
    out[:] = rows
    assert not out.flags.aligned
    return out


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -np.nan])
@pytest.mark.parametrize("row", [0, 2047, 2999])
def test_the_first_row_that_is_not_finite_is_found_wherever_it_lies(bad, row):
    rows = np.full((3000, 3), np.finfo(np.float32).max)
    assert row_kernels.first_not_finite(rows) == -1
    rows[row:, 2] = bad
    assert row_kernels.first_not_finite(_at_an_odd_byte(rows)) == row
    assert row_kernels.first_not_finite(np.empty((0, 3), np.float32)) == -1


def test_deltas_at_an_odd_byte_are_added_as_others_are():
    store = LocalStore()
    store.create_table(CONFIG)
    keys, deltas = np.array([5, 7]), np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    store.sync("t", keys, _at_an_odd_byte(deltas), "a", 0, np.zeros(2, np.uint32))
    newer = store.sync("t", keys, _at_an_odd_byte(deltas), "b", 0, np.zeros(2, np.uint32))
    assert newer.rows.tolist() == [[2, 4, 6], [8, 10, 12]]
    store.push("t", keys, _at_an_odd_byte(deltas), "c", 0)
    assert store.pull("t", keys).tolist() == [[3, 6, 9], [12, 15, 18]]
    store.put("t", keys, _at_an_odd_byte(deltas), "c", 1)
    assert store.pull("t", keys).tolist() == deltas.tolist()
