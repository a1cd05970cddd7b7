import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from ctr_trainer.data.conversion import converted_cache
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.conversion.tfrecord import read as read_records
from ctr_trainer.data.source import SourceFile
from ctr_trainer.features.hashing import keys
from ctr_trainer.system.messages.errors import UserError
from tests.data import foreign
from tests.data.make import read

FEATURE = {
    "bytes": lambda v: tf.train.Feature(bytes_list=tf.train.BytesList(value=v)),
    "int64": lambda v: tf.train.Feature(int64_list=tf.train.Int64List(value=v)),
    "float": lambda v: tf.train.Feature(float_list=tf.train.FloatList(value=v)),
}


def example(**features):
    """`name=(kind, values)` -> a serialized Example."""
    made = {name: FEATURE[kind](values) for name, (kind, values) in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString(deterministic=True)


def row(i):
    """The row i of `foreign.table`, with its nulls left out."""
    tags = [f"t{k}".encode() for k in range(i % 5)]
    features = dict(
        row=("int64", [i]),
        clicked=("int64", [int(i % 3 == 0)]),
        price=("float", [i / 4]),
        when=("int64", [1_704_067_200 + i]),
        user=("bytes", [f"u{i % 7}".encode()]),
        item=("int64", [i % 11]),
        hour=("float", [i % 24]),
        day=("bytes", [b"2024-01-01"]),
        tags=("bytes", tags),
        history=("int64", range(i % 6)),
    )
    if i % 4:
        features |= dict(age=("int64", [20 + i % 50]), place=("bytes", ["né"[: 1 + i % 2].encode()]))
    return example(**features)


def write(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


def run(source, output, **options):
    convert("tfrecord", source, output, foreign.SPEC, progress=False, **options)
    return read(output)


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_examples_convert_as_the_same_rows_of_parquet_do(tmp_path, compression):
    (tmp_path / "records").mkdir()
    for part, rows in enumerate((range(60), range(60, 100))):
        write(tmp_path / "records" / f"part-{part}", map(row, rows), compression)
    table = foreign.one_day(100)
    pq.write_table(table, tmp_path / "a.parquet")
    convert("parquet", tmp_path / "a.parquet", tmp_path / "wanted", foreign.SPEC, progress=False)
    wanted = pq.read_table(tmp_path / "wanted" / "part-00000.parquet")
    found = run(tmp_path / "records", tmp_path / "out")
    assert found.column_names == wanted.column_names
    for name in wanted.column_names:
        assert str(found[name].to_pylist()) == str(wanted[name].to_pylist()), name  # as text, NaN equals NaN


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"no Example", "row 6: .*is not a serialized tf.train.Example"),
        (example(row=("int64", [5]), user=("int64", [7])), "row 6, column 'user': 'int64_list' is not bytes_list"),
        (example(row=("int64", [5]), user=("bytes", [b"a", b"b"])), "row 6, column 'user': .* is not one value"),
        (example(row=("int64", [5])), "row 6, column 'clicked': None is not a label of 0 or 1"),
    ],
)
def test_a_bad_record_is_named_by_file_and_row_and_budgeted(tmp_path, bad, message):
    records = [*map(row, range(5)), bad, row(6), row(7)]
    source = write(tmp_path / "a.tfrecord", records)
    with pytest.raises(UserError, match=f"a.tfrecord, {message}"):
        run(source, tmp_path / "none")
    assert run(source, tmp_path / "out", max_bad_rows=1)["id:row"].to_pylist() == [0, 1, 2, 3, 4, 6, 7]


def test_a_bad_label_behind_bad_records_has_its_own_row_number(tmp_path):
    no_label = example(row=("int64", [2]), clicked=("int64", [2]))
    source = write(tmp_path / "a.tfrecord", [row(1), b"bad", no_label])
    with pytest.raises(UserError, match="a.tfrecord, row 3, column 'clicked': 2 is not a label of 0 or 1"):
        run(source, tmp_path / "out", max_bad_rows=1)


def test_a_text_that_is_no_tfrecord_file_is_named(tmp_path):
    (tmp_path / "text").write_text("no TFRecord at all, but a text that is long enough\n")
    with pytest.raises(UserError, match="text: is not a TFRecord file, .*end in .csv"):
        run(tmp_path / "text", tmp_path / "out")


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_a_file_that_is_cut_or_followed_by_other_bytes_is_refused(tmp_path, compression):
    whole = write(tmp_path / "a.tfrecord", map(row, range(100)), compression).read_bytes()
    cut = {
        "": [whole[:-1], whole + b"\0" * 5, whole + whole[:11]],  # of a header there are 12 bytes
        "GZIP": [whole[:-1], whole[:-8], whole[: len(whole) // 2], whole + whole[:15], whole + b"and more"],
    }
    for number, damaged in enumerate(cut[compression]):
        path = tmp_path / f"{number}.tfrecord"
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{number}.tfrecord: .*after (\d+ valid records|record \d+)") as error:
            converted_cache.converted(path, "tfrecord", foreign.SPEC, tmp_path / "cache")
        assert str(error.value).endswith("; a truncated or damaged file must be written again")
        assert "IteratorGetNext" not in str(error.value) and "\n" not in str(error.value)
        assert not list((tmp_path / "cache").glob("*"))
    twice = tmp_path / "twice"
    twice.write_bytes(whole + whole)
    assert len(run(twice, tmp_path / "out")) == 200


@pytest.mark.parametrize("content", [None, "directory"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path, content):
    path = tmp_path / "a.tfrecord"
    if content:
        path.mkdir()
    with pytest.raises(UserError, match="a.tfrecord: cannot be read: .*; it must exist and be readable"):
        list(read_records([SourceFile(str(path), {})], foreign.SPEC, None))


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_a_file_that_is_removed_while_it_is_read_is_named(tmp_path, compression):
    path = write(tmp_path / "a.tfrecord", map(row, range(9)), compression)
    blocks = read_records([SourceFile(str(path), {})], foreign.SPEC, None)
    next(blocks)
    path.unlink()
    with pytest.raises(UserError, match="a.tfrecord: cannot be read: No such file"):
        next(blocks)


def test_a_feature_that_no_record_has_is_named_with_the_others(tmp_path):
    others = {name: ("int64", [1]) for name in ("item", "user", "age", "price", "place", "row")}
    source = write(tmp_path / "a.tfrecord", [example(**others)])
    columns = "row, price, age, user, item, place"
    with pytest.raises(UserError, match=f"no column 'clicked' for the label.*the columns are {columns}"):
        run(source, tmp_path / "out")


def test_a_feature_that_only_some_files_have_is_missing_in_the_others(tmp_path):
    records = [write(tmp_path / "a", map(row, range(4))), write(tmp_path / "b", [row(8)])]  # row 8 has no place
    place = run(records, tmp_path / "out")["place"].to_pylist()
    assert place == keys("place", pa.array([None, "né", "n", "né", None])).tolist()
