import itertools
import json
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer.data import row_order
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.data.row_order import progress
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError
from tests.data.make import SPEC, make_rows

ROWS = 101


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_rows(tmp_path_factory.mktemp("data"), ROWS)


def reader(path, batch_size=8, **options):
    return BatchReader(path, batch_size, shuffle_buffer=20, **options)


def rows_of(batches):
    """The numbers of the examples, in order."""
    return [int(row) for b in batches for row in b.ids["row"][: b.size]]


def assert_equal(a, b):
    """Batch `a` is batch `b`, bit by bit."""
    assert a.size == b.size
    for name in a.keys:
        assert np.array_equal(a.keys[name], b.keys[name])
    for name in a.bags:
        assert np.array_equal(a.bags[name].values, b.bags[name].values)
        assert np.array_equal(a.bags[name].splits, b.bags[name].splits)
    assert a.dense.tobytes() == b.dense.tobytes()
    assert np.array_equal(a.labels, b.labels) and np.array_equal(a.weights, b.weights)
    assert a.ids["row"].tolist() == b.ids["row"].tolist()


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_row_keeps_its_own_columns(path, shuffle):
    tags = keys("tags", pa.array(["t0", "t1", "t2"]))
    values = keys("c", pa.array(["0", "1", "2"]))
    for b in reader(path, epochs=1, shuffle=shuffle):
        bag = b.bags["tags"]
        assert bag.splits.dtype == np.int32 and bag.splits[0] == 0 and bag.splits[-1] == len(bag.values)
        for at in range(b.size):
            i = int(b.ids["row"][at])
            assert b.labels[at] == i % 2 and b.dense[at, 0] == i and b.weights[at] == 1
            assert b.keys["dim4"][at].tolist() == [values[i % 3]]
            assert b.keys["dim2"][at].tolist() == keys("row", pa.array([str(i)])).tolist()
            assert bag.values[bag.splits[at] : bag.splits[at + 1]].tolist() == tags[: i % 4].tolist()


def test_the_last_batch_is_padded_with_weight_zero(path):
    *_, last = reader(path, epochs=1)
    assert last.size == ROWS % 8 == 5
    assert last.keys["dim4"].shape == (8, 1) and last.dense.shape == (8, 1)
    assert not last.keys["dim4"][5:].any() and not last.dense[5:].any()
    assert not last.labels[5:].any() and last.weights.tolist() == [1] * 5 + [0] * 3
    assert last.bags["tags"].splits[5:].tolist() == [last.bags["tags"].splits[5]] * 4
    assert last.ids["row"][5:].tolist() == [None] * 3


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_row_comes_once_an_epoch_in_one_order_for_any_number_of_workers(path, size, shuffle):
    workers = [list(reader(path, rank=r, size=size, epochs=2, shuffle=shuffle)) for r in range(size)]
    steps, order = reader(path, size=size).steps_per_epoch, rows_of(reader(path, epochs=2, shuffle=shuffle))
    assert {len(w) for w in workers} == {2 * steps}
    for epoch, expected in ((slice(0, steps), order[:ROWS]), (slice(steps, None), order[ROWS:])):
        assert [i for w in workers for i in rows_of(w[epoch])] == expected
        assert sorted(expected) == list(range(ROWS))


@pytest.mark.parametrize("num_readers", [1, 3])
def test_more_workers_than_rows_pad_whole_batches(tmp_path, num_readers):
    path = make_rows(tmp_path, 3)
    workers = [list(reader(path, rank=r, size=5, epochs=2, num_readers=num_readers)) for r in range(5)]
    assert sorted(rows_of(itertools.chain(*workers))) == [0, 0, 1, 1, 2, 2]
    assert [[batch.size for batch in batches] for batches in workers] == [[0, 0], [1, 1], [0, 0], [1, 1], [1, 1]]
    for batch in itertools.chain(*workers):
        assert batch.keys["dim4"].shape == (8, 1) and batch.weights.sum() == batch.size


def test_epochs_and_seeds_have_orders_of_their_own(path):
    batches = list(reader(path, epochs=2))
    first, second = rows_of(batches[:13]), rows_of(batches[13:])
    orders = {tuple(o) for o in (first, second, rows_of(reader(path, epochs=1, seed=1)), range(ROWS))}
    assert len(orders) == 4
    assert rows_of(reader(path, epochs=1, shuffle=False)) == list(range(ROWS))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("taken", [0, 1, 3, 5, 7, 13, 14, 20])
def test_the_same_workers_resume_bit_by_bit(path, size, taken):
    for rank in range(size):
        whole = list(reader(path, rank=rank, size=size, epochs=2))
        position = json.loads(json.dumps(reader(path, rank=rank, size=size).position_after(taken)))
        rest = list(reader(path, rank=rank, size=size, epochs=2, position=position))
        assert len(rest) == max(len(whole) - taken, 0)
        for a, b in zip(rest, whole[taken:], strict=True):
            assert_equal(a, b)


@pytest.mark.parametrize("before, after", [(1, 2), (2, 1), (2, 3), (3, 2), (3, 7)])
@pytest.mark.parametrize("batch_size", [8, 5])
def test_other_workers_resume_and_no_row_is_lost_or_repeated(path, before, after, batch_size):
    taken = 3
    rows = [i for r in range(before) for i in rows_of(itertools.islice(reader(path, rank=r, size=before), taken))]
    position = reader(path, size=before).position_after(taken)
    workers = [list(reader(path, batch_size, rank=r, size=after, epochs=1, position=position)) for r in range(after)]
    assert len({len(w) for w in workers}) == 1
    assert sorted(rows + rows_of(itertools.chain(*workers))) == list(range(ROWS))


def test_positions_by_hand(path):
    r = reader(path, 10, size=2)
    assert r.steps_per_epoch == 6  # shares of 50 and 51 rows
    positions = {steps: r.position_after(steps) for steps in (0, 2, 5, 6, 7)}
    assert positions[0]["shares"] == [[[0, 50]], [[50, 101]]]
    assert positions[2]["shares"] == [[[20, 50]], [[70, 101]]]
    assert positions[5]["shares"] == [[], [[100, 101]]]
    after = positions[7]
    assert (after["epoch"], after["shares"]) == (1, [[[10, 50]], [[60, 101]]])
    epochs = {0: 0.0, 2: 40 / ROWS, 5: 100 / ROWS, 6: 1.0, 7: 1 + 20 / ROWS}
    assert {steps: progress(each) for steps, each in positions.items()} == {
        steps: (pytest.approx(each), 2) for steps, each in epochs.items()
    }
    assert progress(None) is progress({"offset": 7}) is None  # The latter is of a reader of somebody's own.
    assert r.steps_before == 0
    assert reader(path, 10, size=2, position=after).steps_before == 7
    assert reader(path, 10, position=after).steps_before == 11 + 2  # 81 rows are left of 101, of 11 batches 9


def test_a_position_is_refused_for_another_order_rows_row_groups_and_file_sizes(path, tmp_path):
    position = reader(path).position_after(2)
    for changed in (dict(seed=1), dict(shuffle=False)):
        with pytest.raises(UserError, match=f"{next(iter(changed))} = "):
            reader(path, position=position, **changed)
    for name in ("fewer", "grouped", "sized"):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match="rows = 101, and now rows = 30"):
        reader(make_rows(tmp_path / "fewer", 30), position=position)
    there = "files = 4 files, 17 row groups"
    with pytest.raises(UserError, match=f"{there}.* now files = 4 files, 10 row groups"):
        reader(make_rows(tmp_path / "grouped", ROWS, rows_per_group=13), position=position)
    again = make_rows(tmp_path / "sized", ROWS)
    values = json.loads((again / "_dataset.json").read_text())
    values["files"][1]["bytes"] += 1
    (again / "_dataset.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=f"{there}, SHA-256 .* now {there}"):
        reader(again, position=position)


def test_dim_replaces_the_specs(path):
    r = reader(path, dim=3, epochs=1)
    assert [t.name for t in r.spec.tables] == ["dim3"]
    assert next(iter(r)).keys["dim3"].shape == (8, 2)


@pytest.mark.parametrize("num_readers", [1, 3])
def test_an_early_end_leaves_no_thread_behind(path, num_readers):
    batches = iter(reader(path, num_readers=num_readers))
    next(batches)
    batches.close()
    assert not [t for t in threading.enumerate() if t.name == f"reading {path}"]


@pytest.mark.parametrize(
    "size, shuffle, taken", [(1, True, 0), (1, True, 5), (2, True, 14), (3, False, 3), (7, True, 1)]
)
def test_the_batches_are_the_same_bit_by_bit_for_any_number_of_readers(path, size, shuffle, taken):
    """On workers with uneven shares, from the beginning and from a place in the middle of a buffer."""
    for rank in range(size):
        share = dict(rank=rank, size=size, shuffle=shuffle, epochs=2)
        position = reader(path, size=size, shuffle=shuffle).position_after(taken)
        one = reader(path, position=position, **share)
        expected = list(one)
        for num_readers in (2, 3):
            several = reader(path, position=position, num_readers=num_readers, **share)
            for a, b in zip(several, expected, strict=True):
                assert_equal(a, b)
            assert several.position_after(4) == one.position_after(4)
            assert several.steps == one.steps and several.steps_before == one.steps_before


@pytest.mark.parametrize("num_readers", [1, 2, 3])
def test_a_damaged_file_is_named_at_its_place_whatever_the_number_of_readers(tmp_path, num_readers):
    path = make_rows(tmp_path, 60)
    whole = rows_of(reader(path, batch_size=7, shuffle=False, epochs=1))
    (path / "part-00001.parquet").unlink()
    batches = iter(reader(path, batch_size=7, shuffle=False, num_readers=num_readers))
    before = rows_of(itertools.islice(batches, 4))
    assert before == whole[:28]  # The first file has 30 rows.
    with pytest.raises(UserError, match="part-00001.parquet"):
        next(batches)
    assert not [t for t in threading.enumerate() if t.name == f"reading {path}"]


def test_an_unfinished_data_set_is_refused(path, tmp_path):
    with pytest.raises(UserError, match="no such directory.*convert"):
        open_dataset(tmp_path / "nothing")
    with pytest.raises(UserError, match="it has no finished conversion.*convert"):
        BatchReader(tmp_path, 8)


def test_shares_are_cut_evenly_across_ranges():
    assert row_order.even_shares([[0, 4], [10, 13]], 2) == [[[0, 3]], [[3, 4], [10, 13]]]
    assert row_order.advance([[3, 4], [10, 13]], 2) == [[11, 13]]
    assert row_order.advance([[0, 4]], 4) == []
    assert row_order.num_batches([[[0, 4]], [[4, 9]]], 2) == 3


def test_buffers_hold_every_row_group_once():
    order = row_order.EpochOrder((5, 5, 5, 2), shuffle=True, seed=3, shuffle_buffer=8)
    buffers = order.buffers(0)
    assert sorted(g for b in buffers for g in b.groups) == [0, 1, 2, 3]
    assert [b.start for b in buffers] == [0, *[b.stop for b in buffers[:-1]]] and buffers[-1].stop == 17
    assert order.buffers(1) != buffers
    assert sorted(order.permutation(0, buffers[0])) == list(range(buffers[0].stop))


@pytest.mark.parametrize("labels", [1, 2])
def test_unlabelled_data_is_refused_but_to_predict_and_its_labels_are_nan(tmp_path, labels):
    values = SPEC.to_dict()
    values["label"] = [{"column": "y"}, {"name": "z", "column": "y"}][:labels]
    source = tmp_path / "rows.csv"
    source.write_text("row,x,c,tags\n1,2.5,a,b|c\n")
    spec = FeatureSpec.from_dict(values).without_labels()
    convert("csv", source, tmp_path / "out", spec, progress=False)
    with pytest.raises(UserError, match="converted without labels"):
        BatchReader(tmp_path / "out", 2)
    (batch,) = BatchReader(tmp_path / "out", 2, epochs=1, labels=False)
    assert batch.labels.shape == ((2,) if labels == 1 else (2, 2))
    assert np.isnan(batch.labels[0]).all()
    assert batch.weights.tolist() == [1, 0]
    assert batch.dense[0].tolist() == [2.5]


def test_a_flipped_byte_is_named_with_its_file_and_row_group(tmp_path):
    data = make_rows(tmp_path, 50)
    name = open_dataset(data).files[1]["name"]
    with pq.ParquetFile(data / name) as file:
        names = file.schema_arrow.names
        column = file.metadata.row_group(2).column(names.index("x"))
    content = bytearray((data / name).read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    (data / name).write_bytes(content)
    pq.read_table(data / name)  # the values are others, and nothing tells so without the checksums
    with pytest.raises(UserError, match=f"{name}: row group 2 cannot be read: .*; convert the data again"):
        list(BatchReader(data, 8, epochs=1))
    with pytest.raises(UserError, match=f"{name}: cannot be read after row 0: "):
        convert("parquet", data / name, tmp_path / "out", SPEC.without_labels(), progress=False)
