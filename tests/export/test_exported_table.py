"""Parts of an export: a table in a graph, lists of raw values, and the directory, which may replace an earlier one."""

import os
import pathlib
import shutil

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from ctr_trainer.embedding.table.row_form import DTYPES
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator.exporters import LatestExporter
from ctr_trainer.export import directory
from ctr_trainer.export.exported_table import CheckpointParts, ExportedTable, KeyIndex
from ctr_trainer.export.raw_keys import RawLists
from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.hashing import keys
from ctr_trainer.system.files.lease import InUse
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1
CONFIG = TableConfig("t", (2, 1), (0.0, 0.0))


def _look_up(keys, asked, config=CONFIG, rows=None):
    """Returns the rows of `asked`, if the row of `keys[i]` is [i + 1, i + 1, i + 1] or rows[i + 1]."""
    table = ExportedTable(config, KeyIndex.of(keys))
    rows = np.repeat(np.arange(len(keys) + 1, dtype=np.float32)[:, None], 3, 1) if rows is None else rows
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
    assert _look_up(SPREAD, SPREAD[:6].reshape(1, 2, 3)).shape == (1, 2, 3, 3)


@pytest.mark.parametrize("dims", [(16, 1), (5, 1), (3,)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_each_form_are_decoded_in_the_graph_to_the_bit(dtype, dims):
    config = TableConfig("t", dims, (0.0,) * len(dims), "sgd", row_dtype=dtype)
    stored = config.form.encode(np.random.default_rng(0).normal(size=(5001, sum(dims))).astype(np.float32))
    stored[0] = 0
    np.testing.assert_array_equal(_look_up(SPREAD, SPREAD, config, stored), config.form.decode(stored[1:]))
    assert not _look_up(SPREAD, np.array([0, 7]), config, stored).any()


def test_lines_stay_narrow_and_full_as_a_table_of_spread_keys_grows():
    keys = np.unique(np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 1 << 18))
    for count in (100, 10_000, len(keys)):
        index = KeyIndex.of(keys[:count])
        assert index.width <= 12
        assert len(index.lines) * index.width < 1.25 * count + 12


def test_a_variable_written_by_pieces_is_restored_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("ctr_trainer.export.exported_table._BYTES", 64)  # Five rows of three floats.
    rows, keys = np.arange(99, dtype=np.float32).reshape(33, 3), np.arange(100)
    parts = CheckpointParts(str(tmp_path / "variables"))
    parts.add("keys", keys.shape, [keys])
    parts.add("rows", rows.shape, np.split(rows, [1, 8, 30]))
    with pytest.raises(ValueError, match="few: expected 3 rows, got 2"):
        parts.add("few", (3, 1), [np.zeros((2, 1), np.float32)])
    parts.join()
    read = tf.train.load_checkpoint(str(tmp_path / "variables"))
    np.testing.assert_array_equal(read.get_tensor("rows"), rows)
    np.testing.assert_array_equal(read.get_tensor("keys"), keys)
    assert not (tmp_path / "variables_parts").exists()


def evaluate(make, feature, rows, **options):
    """Evaluates `make(RawLists)` on lists that are padded with ""."""
    longest = max(map(len, rows))
    padded = [row + [""] * (longest - len(row)) for row in rows]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = tf.reshape(tf.constant(padded, tf.string), [len(rows), longest])
        return session.run(make(RawLists(feature, values, **options)))


def hashed(*values):
    return keys("f", pa.array(values, pa.binary())).tolist()


def sequence(**options):
    return SparseFeature("f", "f", 2, "f", combiner="none", max_length=2, **options)


def test_a_sequence_is_aligned_with_its_newest_values():
    rows = [["a", "b", "c"], ["", "d"], []]
    aligned = evaluate(RawLists.aligned, sequence(), rows)
    assert aligned.tolist() == [hashed("b", "c"), [*hashed("d"), 0], [0, 0]]
    aligned = evaluate(RawLists.aligned, sequence(keep="first", missing="own"), rows)
    assert aligned.tolist() == [hashed("a", "b"), [*hashed("d"), 0], [*hashed(""), 0]]
    assert evaluate(RawLists.aligned, sequence(), [[], []]).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("combiner", "first", "alone"),
    [
        ("sum", [1, 2, 0.5], 3),
        ("mean", [1 / 3.5, 2 / 3.5, 0.5 / 3.5], 1),
        ("sqrtn", np.divide([1, 2, 0.5], 5.25**0.5), 1),
    ],
)
def test_weights_are_parsed_as_conversion_does(combiner, first, alone):
    feature = SparseFeature("f", "f", 2, "f", combiner=combiner, weight_separator=":")
    rows = [[b"a", b"x:y:2", b"\xff\n:0.5"], [b":7", b"b:3"]]
    lists = evaluate(lambda lists: (lists.keys, lists.coefficients()), feature, rows)
    assert lists[0].tolist() == [hashed(b"a", b"x:y", b"\xff\n"), [0, *hashed(b"b"), 0]]
    np.testing.assert_allclose(lists[1], [first, [0, alone, 0]], rtol=1e-6)


def test_a_null_value_of_the_source_is_none_where_it_stands_alone():
    feature = SparseFeature("f", "f", 2, "f", combiner="sum")
    found = evaluate(lambda lists: lists.keys, feature, [["?"], ["?", "a"]], null_values=("", "?"))
    assert found.tolist() == [[0, 0], hashed("?", "a")]


def export(path, text):
    """Writes as `export_saved_model` does."""
    with directory.replacing(str(path)) as draft:
        for name in ("saved_model.pb", "variables/variables.index"):
            file = pathlib.Path(draft, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def test_an_earlier_export_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    (tmp_path / "1").mkdir()  # empty
    for text in ("first", "second"):
        export(tmp_path / "1", text)
        assert (tmp_path / "1" / "variables" / "variables.index").read_text() == text
        assert os.listdir(tmp_path) == ["1"]


def test_what_was_added_to_an_export_keeps_it_from_being_replaced(tmp_path):
    export(tmp_path / "1", "first")
    warmup = tmp_path / "1" / "assets.extra" / "tf_serving_warmup_requests"
    warmup.write_text("mine")
    with pytest.raises(UserError, match="1 holds files that `export` did not write .assets.extra/tf_serving_warmup"):
        export(tmp_path / "1", "second")
    assert warmup.read_text() == "mine" and (tmp_path / "1" / "saved_model.pb").read_text() == "first"


def test_a_saved_model_of_others_and_a_directory_of_versions_stay(tmp_path):
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "saved_model.pb").write_text("of Keras")
    with pytest.raises(UserError, match="keras holds files that `export` did not write .saved_model.pb."):
        export(tmp_path / "keras", "new")
    for version in ("1", "9"):
        export(tmp_path / "ctr" / version, "first")
    with pytest.raises(UserError, match="name a version that does not exist yet: export_dir=.*/ctr/10$"):
        export(tmp_path / "ctr", "new")
    (tmp_path / "link").symlink_to(tmp_path / "ctr" / "1")
    (tmp_path / "file.tmp").write_text("mine")
    for path in ("link", "file.tmp"):
        with pytest.raises(UserError, match=f"{path} is not a directory"):
            export(tmp_path / path, "new")
    export(tmp_path / "file", "first")  # its draft was named file.tmp once, and the file of that name removed
    assert (tmp_path / "file.tmp").read_text() == "mine"


def test_a_failed_or_killed_export_leaves_the_one_before(tmp_path):
    export(tmp_path / "1", "first")
    with pytest.raises(ZeroDivisionError), directory.replacing(str(tmp_path / "1")) as draft:
        pathlib.Path(draft).mkdir()
        pathlib.Path(draft, "saved_model.pb").write_text("half")
        with pytest.raises(InUse, match="writes this export now"):
            export(tmp_path / "1", "other")
        raise ZeroDivisionError
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "first"
    # Killed when the earlier one had been moved aside, and again when the new one was in its place.
    place = tmp_path / ".1.unfinished"
    shutil.copytree(tmp_path / "1", place / "replaced")
    export(tmp_path / "1", "second")
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "second" and os.listdir(tmp_path) == ["1"]


def test_the_latest_exporter_removes_only_old_exports(tmp_path, caplog):
    class Estimator:
        def export_saved_model(self, parent, receive, checkpoint_path, assets_extra):
            path = os.path.join(parent, checkpoint_path)
            export(path, checkpoint_path)
            return path

    (tmp_path / "20261101").mkdir()
    (tmp_path / "20261101" / "notes.txt").write_text("mine")
    exporter = LatestExporter("latest", exports_to_keep=1)
    for step in ("10", "20", "30"):
        exporter.export(Estimator(), str(tmp_path), step, {"global_step": int(step)}, False)
        if step == "20":
            assert sorted(os.listdir(tmp_path)) == ["20", "20261101"]
            (tmp_path / "20" / "notes.txt").write_text("mine")
    assert sorted(os.listdir(tmp_path)) == ["20", "20261101", "30"]
    assert os.listdir(tmp_path / "20") == os.listdir(tmp_path / "20261101") == ["notes.txt"]
    assert "20, but kept the files that were added to it" in caplog.text
