import numpy as np
import pytest

from ctr_trainer.embedding.store import row_codec


def test_a_row_is_scaled_by_its_own_power_of_two():
    # 3 * 2**-20 is 0.75 * 2**-18: times 2**32 it is 12288, within [2**13, 2**14).
    packed = row_codec.pack(np.float32([[3 * 2.0**-20, -(2.0**-20)]]))
    assert packed.dtype == np.float16
    assert packed.tolist() == [[-32, 12288, -4096]]


def test_values_of_few_bits_come_back_as_they_were_at_any_scale():
    rows = np.float32([[1, -2, 0], [3e4 * 2**20, 1.5, 0], [2.0**-100, 0, 0], [2.0**126, 2.0**100, 1], [0, 0, 0]])
    rows[1, 0], rows[3, 2] = 2.0**30, 0
    np.testing.assert_array_equal(row_codec.unpack(row_codec.pack(rows)), rows)


def test_the_error_is_within_the_bound():
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((1000, 8)) * 10.0 ** rng.integers(-30, 30, (1000, 8))).astype(np.float32)
    error = np.abs(row_codec.unpack(row_codec.pack(rows)) - rows)
    assert (error <= 2.0**-11 * np.abs(rows) + 2.0**-38 * np.abs(rows).max(axis=1, keepdims=True)).all()


@pytest.mark.parametrize("power", [np.nan, np.inf, -np.inf, 0.5, 115, -127])
def test_a_damaged_power_makes_the_row_not_finite(power):
    packed = row_codec.pack(np.ones((2, 2), np.float32))
    packed[1, 0] = power
    np.testing.assert_array_equal(np.isfinite(row_codec.unpack(packed)).all(axis=1), [True, False])


def test_no_rows():
    assert row_codec.unpack(row_codec.pack(np.empty((0, 3), np.float32))).shape == (0, 3)


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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_damaged_value_comes_out_not_finite(value):
    packed = row_codec.pack(np.ones((1, 3), np.float32))
    packed[0, 2] = value
    np.testing.assert_array_equal(np.isfinite(row_codec.unpack(packed)), [[True, False, True]])
