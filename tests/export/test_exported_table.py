"""A table in a graph: which row a key finds, and how its variables are stored."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.serving.export.exported_table import CheckpointParts, ExportedTable, KeyIndex, Pieces

tf1 = tf.compat.v1
CONFIG = TableConfig("t", (2, 1), (0.0, 0.0))


def _look_up(keys, asked):
    """Returns the rows of `asked`, if the row of `keys[i]` is [i + 1, i + 1, i + 1]."""
    table = ExportedTable(CONFIG, KeyIndex.of(keys))
    rows = np.repeat(np.arange(len(keys) + 1, dtype=np.float32)[:, None], 3, 1)
    with tf.Graph().as_default(), tf1.Session() as session:
        found = table.look_up(tf.constant(asked))
        for name, values in {**table.index_values, "rows": rows}.items():
            value = tf1.placeholder(values.dtype, values.shape)
            session.run(tf1.assign(table.variables[name], value), {value: values})
        return session.run(found)


SPREAD = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 5000)


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(SPREAD, id="spread over all 64 bits"),
        pytest.param(np.arange(1, 300) << 20, id="all in one bucket"),
        pytest.param(np.array([-1]), id="one"),
        pytest.param(np.array([], np.int64), id="none"),
    ],
)
def test_each_key_finds_its_row_and_others_find_zeros(keys):
    unknown = np.array([0, 7, -7, 2**63 - 1, -(2**63)])
    found = _look_up(keys, np.concatenate([keys, unknown]))
    expected = np.concatenate([np.arange(1, len(keys) + 1), np.zeros(len(unknown))])
    np.testing.assert_array_equal(found, np.repeat(expected[:, None], 3, 1))


def test_rows_keep_the_shape_of_the_keys():
    assert _look_up(SPREAD, SPREAD[:6].reshape(1, 2, 3)).shape == (1, 2, 3, 3)


def test_lines_stay_narrow_and_full_as_a_table_of_spread_keys_grows():
    keys = np.unique(np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 1 << 18))
    for count in (100, 10_000, len(keys)):
        index = KeyIndex.of(keys[:count])
        assert index.width <= 12
        assert len(index.lines) * index.width < 1.25 * count + 12


def test_a_variable_written_by_pieces_is_restored_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("ctr_trainer.serving.export.exported_table._BYTES", 64)  # Five rows of three floats.
    rows, keys = np.arange(99, dtype=np.float32).reshape(33, 3), np.arange(100)
    parts = CheckpointParts(str(tmp_path / "variables"))
    parts.add("keys", keys)
    pieces = Pieces(parts, "rows", rows.shape, "float32")
    for block in np.split(rows, [1, 8, 30]):
        pieces.add(block)
    pieces.close()
    parts.join()
    read = tf.train.load_checkpoint(str(tmp_path / "variables"))
    np.testing.assert_array_equal(read.get_tensor("rows"), rows)
    np.testing.assert_array_equal(read.get_tensor("keys"), keys)
    assert not (tmp_path / "variables_parts").exists()


def test_rows_that_do_not_come_are_no_export(tmp_path):
    pieces = Pieces(CheckpointParts(str(tmp_path / "variables")), "rows", (3, 1), "float32")
    pieces.add(np.zeros((2, 1), np.float32))
    with pytest.raises(ValueError, match="rows: expected 3 rows, got 2"):
        pieces.close()
