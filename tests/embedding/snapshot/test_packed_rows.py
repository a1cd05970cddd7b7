import numpy as np
import pytest

from ctr_trainer.embedding.snapshot import packed_rows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.settings.training_configs import DTYPES
from ctr_trainer.system.messages.errors import UserError

CONFIG = TableConfig("dim2", (2, 1), (0.01, 0.0), "adagrad")  # Rows of 3 weights and 3 floats of state.


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4 + 3 * 4), ("float16", 4 + 3 * 2), ("int8", 4 + 2 * 4 + 3)])
def test_a_value_has_the_epoch_and_the_weights_and_not_the_state(dtype, size):
    rows = np.array([[0.5, -1.0, 0.0, 9, 9, 9]], np.float32)
    values = packed_rows.pack(rows, CONFIG, dtype, 7)
    assert values.shape == (1, size) and packed_rows.value_bytes(CONFIG, dtype) == size
    weights, epochs = packed_rows.unpack(values, CONFIG, dtype)
    assert epochs.tolist() == [7] and epochs.dtype == np.uint32
    np.testing.assert_allclose(weights, rows[:, :3], atol=1 / 254)


def test_a_float32_value_is_little_endian_without_gaps():
    values = packed_rows.pack(np.array([[1.0, -2.0, 0.5, 0, 0, 0]], np.float32), CONFIG, "float32", 258)
    expected = b"\x02\x01\x00\x00" + b"\x00\x00\x80\x3f" + b"\x00\x00\x00\xc0" + b"\x00\x00\x00\x3f"
    assert values.tobytes() == expected


def test_an_int8_value_has_a_scale_for_each_segment():
    rows = np.array([[127.0, -63.6, 0.254, 0, 0, 0]], np.float32)
    values = packed_rows.pack(rows, CONFIG, "int8", 0)
    assert values[0, 4:12].view("<f4").tolist() == [1.0, np.float32(0.254) / np.float32(127)]
    assert values[0, 12:].view(np.int8).tolist() == [127, -64, 127]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_error_is_within_what_is_stated_and_the_largest_stays_finite(dtype):
    rng = np.random.default_rng(0)
    config = TableConfig("dim16", (16, 1), (0.01, 0.0))
    rows = (rng.normal(size=(5000, config.width)) * 10.0 ** rng.integers(-9, 4, (5000, 1))).astype(np.float32)
    rows[0], rows[1, :3] = 0, [3e38, 1e-45, -3e38]
    weights, _ = packed_rows.unpack(packed_rows.pack(rows, config, dtype, 1), config, dtype)
    assert not weights[0].any() and np.isfinite(weights[1]).all()
    weights, own = np.delete(weights, 1, 0), np.delete(rows[:, :17], 1, 0)
    bound = {
        "float32": np.zeros_like(own),
        "float16": np.maximum(np.abs(own) * 2.0**-11, 2.0**-25),
        "int8": np.hstack([np.repeat(np.abs(own[:, :16]).max(1)[:, None], 16, 1), np.abs(own[:, 16:])]) / 254,
    }[dtype]
    assert (np.abs(weights - own) <= bound * (1 + 1e-5)).all()


def test_values_of_another_dtype_are_refused_and_no_rows_give_none():
    values = packed_rows.pack(np.empty((0, 6), np.float32), CONFIG, "int8", 1)
    assert values.shape == (0, 15) and len(packed_rows.unpack(values, CONFIG, "int8")[0]) == 0
    with pytest.raises(UserError, match="float32, float16, int8, not as 'bfloat16'"):
        packed_rows.value_bytes(CONFIG, "bfloat16")
