import gzip

import pyarrow as pa
import pytest

from ctr_trainer import cli
from ctr_trainer.data import libsvm
from ctr_trainer.data.convert import convert
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.data.infer import infer
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.serving.export.saved_model_evaluation import read_raw
from ctr_trainer.system.messages.errors import UserError
from tests.data.make import CONFIGS

SVM = "+1 3:1 17:0.5\n\n-1 qid:4 5:-2e-1\t3:1   # noted\n1\n# all noted\n0 a-7:2\r\n"
FFM = "1 0:u3:1 1:9:0.5 1:8:2\n0 0:u4:1\n1 2:5:3 0:u3:1"


def _batch(path):
    (batch,) = BatchReader(path, 4, shuffle=False, epochs=1)
    return batch


def _hashed(slot, *values):
    return keys(slot, pa.array(values, pa.string())).tolist()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("block", [3, 1 << 20])
def test_lines_become_a_label_and_a_bag_of_weighted_indices(tmp_path, monkeypatch, compress, block):
    monkeypatch.setattr(libsvm, "_BLOCK", block)
    source = tmp_path / ("a.txt.gz" if compress else "a.txt")
    source.write_bytes(gzip.compress(SVM.encode()) if compress else SVM.encode())
    spec = FeatureSpec.load(CONFIGS / "libsvm.toml")
    info = convert("libsvm", source, tmp_path / "out", spec, progress=False)["parts"]["all"]
    assert (info.rows, info.distinct) == (4, {"features": 4})
    batch = _batch(tmp_path / "out")
    assert batch.labels.tolist() == [1, 0, 1, 0]
    bag = batch.bags["features"]
    assert bag.splits.tolist() == [0, 2, 4, 4, 5]
    assert bag.values.tolist() == _hashed("features", "3", "17", "5", "3", "a-7")
    assert bag.weights.tolist() == pytest.approx([1, 0.5, -0.2, 1, 2])


def test_a_query_may_be_an_id(tmp_path):
    (tmp_path / "a.txt").write_text(SVM)
    spec = FeatureSpec.from_dict({**FeatureSpec.load(CONFIGS / "libsvm.toml").to_dict(), "ids": ["qid"]})
    convert("libsvm", tmp_path / "a.txt", tmp_path / "out", spec, progress=False)
    assert _batch(tmp_path / "out").ids["qid"].tolist() == [None, "4", None, None]


@pytest.mark.parametrize(
    ("format", "line", "message"),
    [
        ("libsvm", "1 3:1 5:x", "line 3, column 'features': '5:x' is not index:value, such as 17:0.5"),
        ("libsvm", "1 3", "line 3, column 'features': '3' is not index:value"),
        ("libsvm", "1 3:nan", "'3:nan' is not index:value"),
        ("libsvm", "yes 3:1", "line 3, column 'label': 'yes' is not a number"),
        ("libsvm", "3:1 4:1", "line 3, column 'label': '3:1' is not a number: a line begins with its label"),
        ("libsvm", "1 é:1", "is not index:value"),
        ("libffm", "1 3:1", "line 3, column 'features': '3:1' is not field:index:value, such as 3:17:0.5"),
    ],
)
def test_a_malformed_line_is_a_bad_row_that_is_named(tmp_path, format, line, message):
    good = "1 0:1:1\n" if format == "libffm" else "1 1:1\n"
    (tmp_path / "a.txt").write_text(f"{good}\n{line}\n{good}")
    spec = FeatureSpec.load(CONFIGS / "libsvm.toml").to_dict()
    spec["sparse"][0] |= {"column": "field0"} if format == "libffm" else {}
    spec = FeatureSpec.from_dict(spec)
    with pytest.raises(UserError) as error:
        convert(format, tmp_path / "a.txt", tmp_path / "out", spec, progress=False)
    assert message in str(error.value)
    summary = convert(format, tmp_path / "a.txt", tmp_path / "second", spec, max_bad_rows=1, progress=False)
    assert (summary["bad_rows"], summary["parts"]["all"].rows) == (1, 2)


def test_fields_become_features_of_their_own_by_an_inferred_spec(tmp_path):
    (tmp_path / "a.ffm").write_text(FFM)
    flags = [f"--input={tmp_path / 'a.ffm'}", "--format=libffm"]
    assert cli.main(["convert", "--infer", *flags, f"--output={tmp_path / 'my.toml'}"]) == 0
    spec = FeatureSpec.load(tmp_path / "my.toml")
    kinds = {f.name: (f.combiner, f.weight_separator) for f in spec.sparse}
    assert kinds == {"field0": (None, None), "field1": ("sum", ":"), "field2": ("sum", ":")}
    assert cli.main(["convert", *flags, f"--feature_spec={tmp_path / 'my.toml'}", f"--output={tmp_path / 'out'}"]) == 0
    batch = _batch(tmp_path / "out")
    assert batch.labels[:3].tolist() == [1, 0, 1]
    assert batch.keys["dim16"][:3, 0].tolist() == _hashed("field0", "u3", "u4", "u3")
    assert batch.bags["field1"].values.tolist() == _hashed("field1", "9", "8")
    assert batch.bags["field1"].weights.tolist() == [0.5, 2]
    assert batch.bags["field2"].splits.tolist()[:4] == [0, 0, 0, 1]


def test_minus_one_is_negative_in_an_inferred_spec(tmp_path):
    (tmp_path / "a.txt").write_text("-1 3:1\n+1 4:1 5:1\n")
    spec = infer(tmp_path / "a.txt", tmp_path / "s.toml", format="libsvm", progress=False)
    info = convert("libsvm", tmp_path / "a.txt", tmp_path / "out", spec, progress=False)["parts"]["all"]
    assert info.label_mean == 0.5


def test_lines_without_labels_are_read_where_none_is_needed(tmp_path):
    (tmp_path / "a.txt").write_text("3:1 4:1\n1 5:1\n")
    flags = ["--format=libsvm", f"--input={tmp_path / 'a.txt'}", f"--output={tmp_path / 'out'}", "--unlabelled"]
    assert cli.main(["convert", *flags]) == 0
    assert open_dataset(tmp_path / "out").distinct == {"features": 3}


def test_an_exports_inputs_are_the_indices_with_their_values(tmp_path):
    (tmp_path / "a.txt").write_text("1 3:1 4:0.5\n0 5:1\n")
    (raw,) = read_raw("libsvm", str(tmp_path / "a.txt"), FeatureSpec.load(CONFIGS / "libsvm.toml"), 10)
    assert raw.inputs["features"].tolist() == [[b"3:1", b"4:0.5"], [b"5:1", b""]]
