"""Formats are recognized by the bytes and lines of a file."""

import bz2
import gzip

import pytest

from ctr_trainer import cli
from ctr_trainer.data.conversion.infer import infer
from ctr_trainer.data.conversion.seen_format import seen_format
from ctr_trainer.system.messages.errors import UserError
from tests.data import foreign, test_tfrecord
from tests.data.make import CONFIGS, write
from tests.data.test_libsvm import FFM, SVM

LIBSVM = "1 3:1 7:0.5 12:2\n0 1:1 7:1\n"


def test_text_is_recognized_by_its_lines(tmp_path):
    for name, text, format in (
        ("a", LIBSVM, "libsvm"),
        ("b", SVM, "libsvm"),
        ("c", FFM + "\n", "libffm"),
        ("d", "y,x\n1,2\n", "csv"),
        ("e", "1\n0\n", "csv"),
        ("f", "1,12:30\n0,12:31\n", "csv"),
        ("g", "click 12:30:15 1\n", "csv"),
        ("h", "", "csv"),
        ("i", "0\t1\t68fd1e64\n", "csv"),
    ):
        assert seen_format(str(write(tmp_path / name, text))) == format, text
    assert seen_format(str(write(tmp_path / "a.gz", gzip.compress(LIBSVM.encode())))) == "libsvm"
    assert seen_format(str(write(tmp_path / "a.bz2", bz2.compress(LIBSVM.encode())))) == "libsvm"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("click:0 dense_feature:0.1 dense_feature:0.2 1:417091 2:5\n" * 3, "slot text, as PaddleRec reads it"),
        ('{"click": 1, "user": "a"}\n' * 3, "JSON"),
    ],
)
def test_text_that_no_format_reads_is_refused_with_what_to_write(tmp_path, text, what):
    with pytest.raises(UserError, match=rf"a\.txt: its lines are {what}.*: write "):
        infer(write(tmp_path / "a.txt", text), tmp_path / "s.toml")


def test_libsvm_text_is_inferred_and_trained_without_a_named_format(tmp_path, capsys):
    source = write(tmp_path / "a.txt", LIBSVM * 40)
    assert cli.main(["convert", "--infer", f"--input={source}", f"--output={tmp_path / 's.toml'}"]) == 0
    assert 'column = "label"' in (tmp_path / "s.toml").read_text()
    assert cli.main(["convert", "--infer", f"--input={source}", f"--output={tmp_path / 't.toml'}", "--label=y"]) == 1
    assert "--label=y: no such column; there are label, features" in capsys.readouterr().err
    flags = [f"--train_data={source}", f"--feature_spec={CONFIGS / 'libsvm.toml'}", "--model=lr", "--threads=1"]
    assert cli.main(["train", *flags, f"--model_dir={tmp_path / 'model'}"]) == 0


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_tfrecords_are_inferred_from_their_own_types(tmp_path, compression):
    source = test_tfrecord.write(tmp_path / "a.rec", map(test_tfrecord.row, range(400)), compression)
    spec = infer(source, tmp_path / "s.toml")
    assert spec.label.column == "clicked" and set(spec.ids) == {"row", "when"}
    assert {f.name for f in spec.dense} == {"price"}
    assert {f.name: f.combiner for f in spec.sparse} == {
        "user": None, "item": None, "age": None, "place": None, "tags": "mean",
    }  # fmt: skip
    assert "# left out: hour: alone has an AUC of 1.0000." in (tmp_path / "s.toml").read_text()  # i % 24 tells i % 3.
    foreign.write_spark(tmp_path / "parquet", 400)
    of_parquet = infer(tmp_path / "parquet", tmp_path / "p.toml")
    assert {f.column for f in spec.sparse} <= {f.column for f in of_parquet.sparse}


def test_a_bad_record_is_left_out_of_an_inferred_spec(tmp_path):
    records = [b"no example", *map(test_tfrecord.row, range(60))]
    source = test_tfrecord.write(tmp_path / "a.tfrecord", records)
    with pytest.raises(UserError, match=r"a\.tfrecord, row 1: .* is not a serialized tf.train.Example"):
        infer(source, tmp_path / "s.toml")
    assert infer(source, tmp_path / "s.toml", max_bad_rows=1).label.column == "clicked"
    nothing = test_tfrecord.write(tmp_path / "b.tfrecord", [b"no example"])
    with pytest.raises(UserError, match="row 1"):
        infer(nothing, tmp_path / "t.toml")
