"""Sources of forms of their own: libsvm and libffm, and synthetic clicks."""

import gzip

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from ctr_trainer import cli
from ctr_trainer.data.conversion import text_blocks
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.conversion.infer import infer
from ctr_trainer.data.conversion.measurement import auc
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.export.saved_model_evaluation import read_raw
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError
from tests.data.make import CONFIGS, SPEC, read

SVM = "+1 3:1 17:0.5\n\n-1 qid:4 5:-2e-1\t3:1   # noted\n1\n# all noted\n0 a-7:2\r\n"
FFM = "1 0:u3:1 1:9:0.5 1:8:2\n0 0:u4:1\n1 2:5:3 0:u3:1"


def _batch(path):
    (batch,) = BatchReader(path, 4, shuffle=False, epochs=1)
    return batch


def _hashed(slot, *values):
    return keys(slot, pa.array(values, pa.string())).tolist()


@pytest.mark.parametrize(("compress", "block"), [(False, 3), (True, 1 << 20)])
def test_lines_become_a_label_and_a_bag_of_weighted_indices(tmp_path, monkeypatch, compress, block):
    monkeypatch.setattr(text_blocks, "BLOCK", block)
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


@pytest.mark.parametrize(("format", "text"), [("libsvm", "1 3:1 17:0.5\n"), ("libffm", "1 0:3:1 0:17:0.5\n")])
def test_a_feature_without_weights_has_the_indices_alone(tmp_path, format, text):
    (tmp_path / "a.txt").write_text(text)
    feature = {"name": "features" if format == "libsvm" else "field0", "slot": "f", "dim": 2, "combiner": "sum"}
    spec = FeatureSpec.from_dict({"name": "s", "label": {"column": "label"}, "sparse": [feature]})
    convert(format, tmp_path / "a.txt", tmp_path / "out", spec, progress=False)
    assert read(tmp_path / "out")[feature["name"]].to_pylist() == [_hashed("f", "3", "17")]


def test_minus_one_is_negative_in_an_inferred_spec(tmp_path):
    (tmp_path / "a.txt").write_text("-1 3:1\n+1 4:1 5:1\n")
    spec = infer(tmp_path / "a.txt", tmp_path / "s.toml", format="libsvm")
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


DEMO = FeatureSpec.load(CONFIGS / "demo.toml")


def generate(path, rows=20_000, **options):
    return convert("synthetic", None, path, DEMO, rows=rows, progress=False, **options)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "out"
    generate(path)
    return path


def test_the_raw_sample_converts_to_the_same_columns(demo, tmp_path):
    convert("criteo", demo / "sample.tsv", tmp_path / "out", DEMO, progress=False)
    converted, generated = read(tmp_path / "out"), read(demo / "test").slice(0, 1000)
    assert converted.column_names == generated.column_names and len(converted) == 1000
    for name in converted.column_names:
        np.testing.assert_array_equal(converted[name].to_numpy(), generated[name].to_numpy(), name)


def test_the_data_has_criteos_shape(demo):
    train, test = open_dataset(demo / "train"), open_dataset(demo / "test")
    assert (train.rows, test.rows) == (20_000, 2_000)
    assert train.label_mean == pytest.approx(0.25, abs=0.02)
    assert min(train.distinct.values()) == 3
    assert max(train.distinct.values()) > 10_000
    assert 0.5 < train.statistics["I1"]["count"] / 20_000 < 0.6  # I1 is often missing
    assert all(s["max"] > s["mean"] + 4 * s["std"] for s in train.statistics.values())  # heavy tails
    assert test.statistics == train.statistics
    assert 0.77 < test.extra["oracle_auc"] < 0.84


def test_the_data_is_a_function_of_the_seed(tmp_path):
    for name, seed in (("first", 2), ("same", 2), ("other", 1)):
        generate(tmp_path / name, rows=1000, seed=seed)
    first, same, other = (read(tmp_path / name / "train") for name in ("first", "same", "other"))
    for name in first.column_names:
        np.testing.assert_array_equal(first[name].to_numpy(), same[name].to_numpy())
        assert not np.array_equal(first[name].to_numpy(), other[name].to_numpy())


def test_auc_is_exact_with_ties():
    assert auc(np.array([0, 1, 0, 1]), np.array([0.1, 0.2, 0.3, 0.4])) == 0.75
    assert auc(np.array([0, 1]), np.array([0.5, 0.5])) == 0.5
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 500), rng.integers(0, 20, 500)
    assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(spec=SPEC), "C1..C26"),
        (dict(rows=10), "at least 1000"),
        (dict(split="random:0.8,0.2"), "leave out the input, the split"),
        (dict(input="a.tsv"), "leave out the input"),
    ],
)
def test_what_it_cannot_generate_is_refused(tmp_path, options, message):
    arguments = dict(format="synthetic", input=None, output=tmp_path / "out", spec=DEMO, progress=False) | options
    with pytest.raises(UserError, match=message):
        convert(**arguments)
