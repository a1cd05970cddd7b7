"""The stored forms of rows: rounding, steps that stay, and rows at any byte of a message."""

import numpy as np
import pytest

from ctr_trainer.embedding.snapshot import packed_rows
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.row_form import DTYPES, RowForm
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.settings.setting import declared
from tests.rows import pulled

ROUNDED = [name for name in DTYPES if name != "float32"]
CONFIG = TableConfig("t", (2, 1), (0.0, 0.0), "sgd")


def _rows(count=1000, width=34):
    """Rows of all magnitudes, with large and tiny state."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal((count, width)) * 10.0 ** rng.integers(-8, 5, (count, 1))).astype(np.float32)


def test_bytes_of_the_weights_and_the_names_of_the_setting():
    assert declared(EmbeddingConfig.__dataclass_fields__["row_dtype"]).choices == tuple(DTYPES)
    lanes = {name: (RowForm((16, 1), 2, name).weight_lanes, RowForm((16, 1), 2, name).lanes) for name in DTYPES}
    assert lanes == {"float32": (17, 19), "float16": (9, 11), "int8": (6, 8)}  # 24 of 68 bytes: 0.353.
    with pytest.raises(ValueError, match="table t: row_dtype 'int4' is not one of float32, float16, int8"):
        TableConfig("t", (2,), (0.0,), row_dtype="int4")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(16, 1), (5,), (3, 9, 2), (1,)], ids=str)
def test_rows_change_by_less_than_a_step_and_then_no_more(dtype, dims):
    form, rows = RowForm(dims, 3, dtype), _rows(width=sum(dims) + 3)
    decoded, start = form.decode(form.encode(rows)), 0
    for dim in dims:
        own, error = rows[:, start : start + dim], np.abs(decoded - rows)[:, start : start + dim]
        if form.is_exact or dim == 1 or (dtype, dim) == ("int8", 2):
            assert not error.any()
        elif dtype == "int8":
            assert (error < np.abs(own).max(axis=1, keepdims=True) / 63.5).all() and error.any()
        else:
            assert (error[np.abs(own) < 65504] < np.maximum(np.abs(own) / 2**10, 2.0**-24)[np.abs(own) < 65504]).all()
        start += dim
    np.testing.assert_array_equal(decoded[:, start:], rows[:, start:])  # The state.
    np.testing.assert_array_equal(form.decode(form.encode(decoded)), decoded)
    read = form.take(form.encode(rows), np.array([-1, 7]), weights_only=True)
    np.testing.assert_array_equal(read[1], decoded[7, :start])
    assert not form.take(form.encode(rows), np.array([-1])).any()


@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "adam", "ftrl", "dense_adagrad"])
def test_int8_rows_have_more_bits_in_the_state_and_are_stored_again_to_the_bit(optimizer):
    config = TableConfig("t", (16, 1), (0.0, 0.0), optimizer, row_dtype="int8")
    form, rows = config.form, _rows(100_000, config.width)
    rows[:10, :17], rows[10:50_000, 0] = 0, 63.502 * 2.0**-3
    rows[10:50_000, 1:17] *= 2.0**-5 / np.abs(rows[10:50_000, 1:17]).max(axis=1, keepdims=True)
    stored = form.encode(rows)
    decoded, read = form.decode(stored), form.read(rows)
    steps = stored[:, :1].copy()
    assert (np.abs(decoded - rows)[:, :16] <= steps / 256).all()
    assert (np.abs(read - rows[:, :17])[:, :16] <= steps * (0.5 + 1 / 128)).all()
    np.testing.assert_array_equal(read, form.take(stored, np.arange(len(rows)), weights_only=True))
    assert (np.abs(decoded - rows)[:, 16:] <= np.abs(rows[:, 16:]) * 2.0**-15).all()
    np.testing.assert_array_equal(form.encode(decoded).view(np.int32), stored.view(np.int32))
    assert form.lanes == 6 + config.state
    published, _ = packed_rows.unpack(packed_rows.pack(read, config, "int8", 1), config, "int8")
    np.testing.assert_array_equal(published[:, :16], read[:, :16])


@pytest.mark.parametrize("dtype", ROUNDED)
def test_rounding_is_right_on_average_and_independent_from_weight_to_weight(dtype):
    rows = np.random.default_rng(1).uniform(0.5, 1, (100_000, 18)).astype(np.float32)
    rows[:, :3] = 1, 0.3, -0.3001
    error = (RowForm((16,), 2, dtype).decode(RowForm((16,), 2, dtype).encode(rows)) - rows)[:, 1:16].astype(float)
    step = {"float16": 2.0**-11, "int8": 2.0**-6}[dtype]
    assert np.abs(error.mean(axis=0)).max() < 4 * step / 2 / np.sqrt(len(rows))
    assert np.abs(np.corrcoef(error.T) - np.eye(15)).max() < 0.02


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_stays_so_and_the_largest_values_stay_finite(dtype, bad):
    form, rows = RowForm((4, 1), 1, dtype), np.full((3, 6), 3e38, np.float32)
    rows[1, 2], rows[2] = bad, 0
    np.testing.assert_array_equal(np.isfinite(form.decode(form.encode(rows))).all(axis=1), [True, False, True])
    assert not form.decode(form.encode(rows))[2].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_message_that_lie_at_an_odd_byte_are_decoded(dtype):
    form = RowForm((5, 1), 1, dtype)
    stored = form.encode(_rows(10, 7))
    np.testing.assert_array_equal(form.decode(_at_an_odd_byte(stored)), form.decode(stored))


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "ftrl"])
def test_each_optimizer_trains_rounded_rows_as_float32_up_to_noise(dtype, optimizer):
    """A thousand steps, each smaller than a step of int8, add up; a second table has the same bits."""
    keys, rng = np.arange(1, 201), np.random.default_rng(3)
    exact, rounded, again = (
        Table(TableConfig("t", (16, 1), (0.02, 0.0), optimizer, row_dtype=name)) for name in ("float32", dtype, dtype)
    )
    drift = rng.normal(size=(200, 16)).astype(np.float32)
    for _ in range(1000):
        gradients = [drift + rng.normal(size=(200, 16)).astype(np.float32), np.ones((200, 1), np.float32)]
        for table in (exact, rounded, again):
            table.apply_gradients(table.find_or_create(keys), gradients, 1e-3)
    moved = (exact.stored - exact.initial_rows(keys))[:, :16]
    error = (rounded.config.form.decode(rounded.stored) - exact.stored)[:, :16]
    assert np.sqrt((error**2).mean()) < 0.25 * np.sqrt((moved**2).mean())
    assert abs(np.vdot(error, moved)) < 0.01 * np.vdot(moved, moved)  # No step is lost on average.
    np.testing.assert_array_equal(rounded.stored, again.stored)
    assert rounded.nbytes < exact.nbytes


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
    store.sync("t", keys, _at_an_odd_byte(deltas), "c", 0)
    assert pulled(store, "t", keys).tolist() == [[3, 6, 9], [12, 15, 18]]
    store.put("t", keys, _at_an_odd_byte(deltas), "c", 1)
    assert pulled(store, "t", keys).tolist() == deltas.tolist()
