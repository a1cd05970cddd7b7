"""Training and using a model from Python, on tables in memory and on files."""

import json
import logging
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import ctr_trainer as ctr
from ctr_trainer import cli
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.models.registry import find_model
from ctr_trainer.system.messages.errors import UserError
from tests import small
from tests.docs.page import ROOT
from tests.parallel import launch

ROWS = 2_000


def clicks(rows=ROWS, seed=0):
    """Returns a table of clicks, which depend on the user and on the price."""
    rng = np.random.default_rng(seed)
    user, price = rng.integers(0, 30, rows), rng.integers(0, 1000, rows) / 10
    clicked = rng.random(rows) < 1 / (1 + np.exp(2 - (user % 5) + price / 40))
    users = pa.array([f"user {number}" for number in user]).dictionary_encode()
    return pa.table({"user": users, "price": price, "clicked": clicked.astype(np.int8)})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return ctr.train(clicks(), label="clicked", model_dir=tmp_path_factory.mktemp("python") / "model", epochs=20)


def test_a_table_trains_a_model_that_predicts_evaluates_and_exports(model, tmp_path, capfd):
    new = clicks(500, seed=1)
    scores = model.predict(new.drop(["clicked"]))
    assert scores.shape == (500,) and scores.dtype == np.float32
    clicked = np.asarray(new["clicked"])
    assert scores[clicked == 1].mean() > scores[clicked == 0].mean() + 0.1
    threads = threading.active_count()
    found = model.evaluate(new, group_by="user")
    assert found["auc"] > 0.7 and found["examples"] == 500 and found["gauc_groups"] > 20
    with pytest.raises(UserError, match="no column 'usr' to group by.*did you mean user"):
        model.evaluate(new, group_by="usr")
    launch.wait_until(lambda: threading.active_count() <= threads, "the end of the evaluations' threads", 30)
    pq.write_table(new, tmp_path / "new.parquet")
    opened = pickle.loads(pickle.dumps(ctr.load(model.model_dir)))
    assert opened.evaluate(tmp_path / "new.parquet")["auc"] == found["auc"]
    assert (opened.predict([tmp_path / "new.parquet"]) == scores).all()
    assert re.fullmatch(r"ClickModel\(model='deepfm', model_dir='.*', step=\d+\)", repr(opened))
    assert opened.export(tmp_path / "serving") == str(tmp_path / "serving")
    assert (tmp_path / "serving" / "saved_model.pb").exists()
    assert "tensorflow" not in capfd.readouterr().err
    # TensorFlow stays in eager mode, in which a notebook uses an export, or Keras.
    serve = tf.saved_model.load(str(tmp_path / "serving")).signatures["serving_default"]
    raw = {"user": tf.constant(new["user"].to_pylist()), "price": tf.constant(new["price"].to_numpy(), tf.float32)}
    assert np.allclose(serve(**raw)["probabilities"].numpy(), scores, atol=1e-6)


def test_ids_may_be_missing_in_a_prediction_and_errors_name_the_argument(tmp_path):
    spec = 'name = "s"\nids = ["row"]\nlabel = {column = "clicked"}\ndense = [{name = "price"}]\n'
    (tmp_path / "s.toml").write_text(spec)
    data = clicks(300).append_column("row", pa.array(range(300)))
    model = ctr.train(data, model="lr", epochs=1, feature_spec=tmp_path / "s.toml")
    new = data.select(["price"])
    np.testing.assert_array_equal(model.predict(new), model.predict(data))
    wrong = pa.table({"price": ["1", "cheap"], "clicked": [0, 1], "row": [0, 1]})
    for use in (model.predict, lambda data: ctr.train(data, model="lr", feature_spec=tmp_path / "s.toml")):
        with pytest.raises(UserError, match="^data, row 2, column 'price': 'cheap' is not") as found:
            use(wrong)
        assert "parquet" not in str(found.value)


def test_a_script_writes_only_what_it_prints(tmp_path):
    pq.write_table(clicks(500), file := tmp_path / "clicks.parquet")
    script = "import sys, ctr_trainer as ctr; model = ctr.train(sys.argv[1], epochs=1); model.evaluate(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", script, file], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")
    # On some processors, the import of TensorFlow writes lines that nothing leaves out.
    lines = [each for each in done.stderr.splitlines() if "oneDNN" not in each and "absl::InitializeLog()" not in each]
    assert lines == []


def test_the_log_of_tensorflow_is_afterwards_as_before():
    logger = logging.getLogger("tensorflow")
    before = logger.level, logger.filters[:]
    logger.setLevel("ERROR")
    try:
        ctr.train(clicks(300), model="lr", epochs=1).predict(clicks(3))
        assert (logger.level, logger.filters) == (logging.ERROR, before[1])
    finally:
        logger.setLevel(before[0])


def test_as_many_rows_as_said_may_be_unusable(tmp_path):
    rows = clicks(300).to_pylist()
    lines = ["user,price,clicked", *(f"{each['user']},{each['price']},{each['clicked']}" for each in rows)]
    (tmp_path / "clicks.csv").write_text("\n".join([*lines, "user 1,3.5,perhaps", "user 1,3.5"]))
    (tmp_path / "s.toml").write_text('name = "s"\nlabel = {column = "clicked"}\ndense = [{name = "price"}]\n')
    given = {"model": "lr", "epochs": 1, "feature_spec": tmp_path / "s.toml"}
    assert ctr.train(tmp_path / "clicks.csv", **given, max_bad_rows=2).evaluate(clicks(50))["examples"] == 50
    with pytest.raises(UserError, match=r"increase max_bad_rows \(now 1\)"):
        ctr.train(tmp_path / "clicks.csv", **given, max_bad_rows=1)
    (tmp_path / "clicks.csv").write_text("\n".join([*lines, "user 1,3.5"]))
    assert "lr" in repr(ctr.train(tmp_path / "clicks.csv", model="lr", epochs=1, max_bad_rows=1))


def test_text_is_read_under_any_name_by_training_and_by_the_model(tmp_path):
    for name in ("train.txt", "adult.test", "rows"):
        csv.write_csv(clicks(300).select(["price", "clicked"]), tmp_path / name)
    model = ctr.train(tmp_path / "train.txt", model="lr", epochs=1, eval_data=tmp_path / "adult.test")
    for name in ("train.txt", "adult.test", "rows"):
        assert model.evaluate(tmp_path / name)["examples"] == len(model.predict(tmp_path / name)) == 300


def test_importance_names_what_the_clicks_depend_on(model):
    rng = np.random.default_rng(4)
    new = clicks(1500, seed=4).append_column("noise", pa.array(rng.random(1500)))
    found = model.importance(new, repeats=3, rows=1000)
    assert [each["column"] for each in found] == ["user", "price"]
    for each in found:
        assert each["auc_drop"] > each["auc_drop_error"] > 0 and each["logloss_rise"] > each["logloss_rise_error"] > 0
    assert found == model.importance(new, repeats=3, rows=1000)
    with pytest.raises(UserError, match="repeats=1: expected at least 2"):
        model.importance(new, repeats=1)


def test_pandas_frames_give_a_series_with_their_index(model):
    pd = pytest.importorskip("pandas", reason="no pandas: pip install pandas")
    frame = clicks(50, seed=2).to_pandas().set_index(pd.RangeIndex(100, 150))
    scores = model.predict(frame)
    assert isinstance(scores, pd.Series) and list(scores.index) == list(range(100, 150))


def test_views_of_texts_are_read_in_columns_dictionaries_and_lists(tmp_path):
    data, rows = clicks(300), np.arange(301, dtype=np.int32)
    users = data["user"].combine_chunks()

    def table(kind):
        texts = users.dictionary_decode().cast(kind)
        coded = pa.DictionaryArray.from_arrays(users.indices, users.dictionary.cast(kind))
        lists = [pa.ListArray.from_arrays(rows, texts), pa.LargeListArray.from_arrays(rows, coded)]
        return data.select(["price", "clicked"]).append_column("user", texts).append_column("code", coded), lists

    (plain, plain_lists), (views, view_lists) = table(pa.string()), table(pa.string_view())
    for name, one, other in zip(("list", "codes"), plain_lists, view_lists, strict=True):
        plain, views = plain.append_column(name, one), views.append_column(name, other)
    model = ctr.train(plain, label="clicked", epochs=1)
    in_file = {"code": views["user"], "codes": views["list"]}  # Arrow cannot write dictionaries of views.
    in_file = pa.table({name: in_file.get(name, views[name]) for name in views.column_names})
    pq.write_table(in_file, tmp_path / "views.parquet")
    scores = model.predict(plain)
    for each in (views, tmp_path / "views.parquet"):
        np.testing.assert_array_equal(model.predict(each), scores)
    of_file = ctr.train(tmp_path / "views.parquet", label="clicked", epochs=1)
    np.testing.assert_array_equal(of_file.predict(views), of_file.predict(plain))
    np.testing.assert_array_equal(ctr.train(views, label="clicked", epochs=1).predict(plain), scores)


def test_a_training_lost_before_its_first_checkpoint_leaves_no_features(tmp_path):
    spec = 'name = "s"\nlabel = {column = "clicked"}\ndense = [{name = "price", transform = "standardize"}]\n'
    (tmp_path / "old.toml").write_text(spec + '[[sparse]]\nname = "user"\ndim = 4\n')
    (tmp_path / "new.toml").write_text(spec)
    given, model_dir = {"model": "lr", "epochs": 1}, tmp_path / "model"
    ctr.train(clicks(300), **given, feature_spec=tmp_path / "old.toml", model_dir=model_dir)
    shutil.rmtree(model_dir / "checkpoints")
    new = clicks(300, seed=1).drop_columns(["user"])
    pq.write_table(new, tmp_path / "new.parquet")
    convert("parquet", tmp_path / "new.parquet", tmp_path / "new", FeatureSpec.load(tmp_path / "new.toml"))
    ctr.train(tmp_path / "new", **given, eval_data=new, model_dir=model_dir)
    saved = json.loads((model_dir / "features.json").read_text())
    assert saved["statistics"]["price"]["mean"] == pytest.approx(np.mean(new["price"]))
    assert not saved["spec"]["sparse"]
    # The data of the evaluations waits for the features of this training, though its spec is given.
    for name in ("checkpoints", "best"):
        shutil.rmtree(model_dir / name)
    boundaries = '\n[[sparse]]\nname = "level"\ncolumn = "price"\ndim = 4\nquantiles = 5\n'
    (tmp_path / "other.toml").write_text((tmp_path / "new.toml").read_text() + boundaries)
    spec, path = tmp_path / "other.toml", tmp_path / "new.parquet"
    model = ctr.train(path, **given, feature_spec=spec, eval_data=path, model_dir=model_dir)
    assert model.predict(path).shape == (300,)


@pytest.mark.parametrize("is_converted", [False, True])
def test_a_model_predicts_the_named_one_of_several_labels(tmp_path, is_converted):
    data, given = small.make(tmp_path, rows=100, labels=2), {"model": "lr", "epochs": 1}
    table = csv.read_csv(tmp_path / "rows.csv")
    source = data if is_converted else table
    given |= {} if is_converted else {"feature_spec": tmp_path / "spec.toml"}
    with pytest.raises(UserError, match="which must be one of the data's: clicked, bought"):
        ctr.train(source, **given, label="order")
    model = ctr.train(source, **given, label="bought", model_dir=tmp_path / "model")
    scores = model.predict(table)
    assert scores.shape == (100,) and scores.dtype == np.float32
    assert model.evaluate(table)["prob_mean/bought"] == pytest.approx(scores.mean(), rel=1e-4)
    both = ctr.train(source, **given | {"model": "mmoe"}).predict(table)
    assert {label: len(each) for label, each in both.items()} == {"clicked": 100, "bought": 100}


def test_the_only_label_of_a_spec_or_of_converted_data_is_not_given(tmp_path):
    data, spec = small.make(tmp_path, rows=20), tmp_path / "spec.toml"
    with pytest.raises(UserError, match="converted data has its label"):
        ctr.train(data, label="clicked")
    with pytest.raises(UserError, match="the feature spec names the label"):
        ctr.train(tmp_path / "rows.csv", label="clicked", feature_spec=spec)


def test_numbers_alone_train_tabm_and_files_hold_out_a_tenth(tmp_path):
    pq.write_table(clicks().select(["price", "clicked"]), tmp_path / "numbers.parquet")
    model = ctr.train(tmp_path / "numbers.parquet", label="clicked", epochs=1)
    assert _flags(model) == ("tabm", ["members=8"], 0.1, [256, 128])
    with pytest.raises(TypeError, match="train it with a model_dir"):
        pickle.dumps(model)


def _flags(model):
    flags = json.loads((pathlib.Path(model.model_dir) / "flags.json").read_text())["flags"]
    return tuple(flags[name] for name in ("model", "model_params", "dropout", "hidden_units"))


_PIECES = 'transform = "piecewise_linear"\npieces = 4\n'


@pytest.mark.parametrize(
    ("pieces", "settings", "expected"),
    [
        ("", {}, ("tabm", [], 0.5, [128])),
        (_PIECES, {"recipe": "none"}, ("tabm", [], 0.0, [256, 128, 64])),
        (_PIECES, {"model_params": {"members": 2}}, ("tabm", ["members=2"], 0.5, [128])),
        (_PIECES, {"hidden_units": (8,)}, ("tabm", ["members=8"], 0.1, [8])),
    ],
)
def test_numbers_alone_train_tabm_where_the_recipe_does_not(tmp_path, pieces, settings, expected):
    spec = 'name = "s"\nlabel = {column = "clicked"}\n[[dense]]\nname = "price"\n'
    (tmp_path / "s.toml").write_text(spec + pieces)
    settings |= {"epochs": 1, "feature_spec": tmp_path / "s.toml"}
    assert _flags(ctr.train(clicks(300), **settings)) == expected


def test_an_estimator_takes_the_name_of_a_model(tmp_path):
    assert cli.main(["convert", "--format=synthetic", "--rows=1000", f"--output={tmp_path / 'data'}"]) == 0
    estimator = ctr.Estimator("deepfm", tmp_path / "model", params={"hidden_units": (8,)})
    estimator.train(lambda: ctr.BatchReader(tmp_path / "data" / "train", 64), max_steps=3)
    assert repr(estimator) == f"Estimator('deepfm', model_dir='{tmp_path / 'model'}', step=3)"
    (tmp_path / "clicks.csv").touch()
    with pytest.raises(UserError, match="clicks.csv: it is a file; run `convert` first, or set feature_spec to read"):
        ctr.BatchReader(tmp_path / "clicks.csv", 64)
    with pytest.raises(UserError, match=r"give train_op_fn=ctr_trainer.TrainOp\(\)"):
        params = find_model("deepfm").params_class()
        estimator = ctr.Estimator(find_model("deepfm").model_fn, tmp_path / "other", params=params)
        estimator.train(lambda: ctr.BatchReader(tmp_path / "data" / "train", 64), max_steps=3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"label": "buys"}, "buys"),
        ({"label": "clicked", "epoch": 3}, "epoch"),
        ({"label": "clicked", "model_dir": "~/model"}, "--model_dir=~/model: a ~ is not replaced"),
        ({"label": "clicked", "hidden_units": "many"}, "--hidden_units=many"),
    ],
)
def test_wrong_arguments_are_named(given, message):
    with pytest.raises(UserError, match=message):
        ctr.train(clicks(100), **given)


def test_a_directory_with_a_model_is_refused(model):
    with pytest.raises(UserError, match=r"it contains a model; use load\(\)"):
        ctr.train(clicks(100), label="clicked", model_dir=model.model_dir)
    with pytest.raises(UserError, match="give a DataFrame, an Arrow table, or paths of files"):
        model.predict(3)


def test_data_that_cannot_be_read_is_refused_in_plain_words(model):
    with pytest.raises(UserError, match="max_bad_rows: predict returns a value for each row"):
        model.predict(clicks(3), max_bad_rows=5)
    pd = pytest.importorskip("pandas", reason="no pandas: pip install pandas")
    mixed = pd.DataFrame({"user": ["user 1", 2, "user 3"], "price": [1.0, 2.0, 3.0]})
    with pytest.raises(UserError, match=r"Conversion failed for column user.*astype\(str\)"):
        model.predict(mixed)
    with pytest.raises(UserError, match="Duplicate column names"):
        model.predict(mixed.set_axis(["price", "price"], axis=1))


def test_a_reader_of_record_batches_trains(tmp_path):
    data = clicks(300)
    model = ctr.train(data.to_reader(), label="clicked", model="lr", epochs=1)
    assert len(model.predict(data.to_reader())) == 300


@pytest.mark.parametrize("make", ["csr_matrix", "one_column", "mixed"])
def test_a_classifier_refuses_what_is_no_table_of_columns(make):
    sparse = pytest.importorskip("scipy.sparse", reason="no scikit-learn: pip install scikit-learn")
    X, y = np.eye(4), [0, 1, 0, 1]
    mixed = np.array([["a", 1], [2, "b"]] * 2, object)
    X, message = {
        "csr_matrix": (sparse.csr_matrix(X), r"X is csr_matrix: expected a DataFrame or an array.*X.toarray\(\)"),
        "one_column": (X[0], "X is ndarray: expected a DataFrame or an array of 2 dimensions"),
        "mixed": (mixed, "Expected bytes, got a 'int' object"),
    }[make]
    with pytest.raises(UserError, match=message):
        ctr.ClickClassifier(epochs=1).fit(X, y)


def test_a_classifier_works_in_scikit_learn(tmp_path):
    selection = pytest.importorskip("sklearn.model_selection", reason="no scikit-learn: pip install scikit-learn")
    pipeline = pytest.importorskip("sklearn.pipeline")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    table = clicks()
    X = np.stack([table["user"].combine_chunks().indices.to_numpy(), table["price"].to_numpy()], axis=1)
    y = np.where(np.asarray(table["clicked"]) == 1, "yes", "no")
    classifier = ctr.ClickClassifier(epochs=20, settings={"hidden_units": (16,)})
    assert selection.cross_val_score(classifier, X, y, cv=2, scoring="roc_auc").min() > 0.6
    steps = pipeline.make_pipeline(preprocessing.MinMaxScaler(), ctr.ClickClassifier(epochs=1, model="final_mlp"))
    half = selection.StratifiedShuffleSplit(1, test_size=0.5, random_state=0)
    search = selection.GridSearchCV(steps, {"clickclassifier__batch_size": [64, 128]}, cv=half, scoring="neg_log_loss")
    fitted = search.fit(X, y).best_estimator_[-1]
    assert fitted.get_params()["batch_size"] in (64, 128) and list(fitted.classes_) == ["no", "yes"]
    probabilities = search.predict_proba(X)
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert (search.predict(X) == np.where(probabilities[:, 1] > 0.5, "yes", "no")).all()
    with pytest.raises(ValueError, match="expected two classes"):
        classifier.fit(X, X[:, 1])
    with pytest.raises(ValueError, match=r"y has the class 'Yes': expected one of \['no', 'yes'\]"):
        classifier.fit(X, y, eval_set=(X, np.char.replace(y, "yes", "Yes")))


def test_the_page_on_python_and_its_notebook_run(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "python.md").read_text()
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("pandas", reason="no pandas: pip install pandas")
    notebook = json.loads((ROOT / "examples" / "from_python.ipynb").read_text())
    data, *cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    first, *blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert "\n".join(cells) == first.rstrip()
    names = {}
    for cell in (data, *cells):
        exec(cell, names)
    assert "0   item  0.1" in capsys.readouterr().out
    for block in blocks:
        exec(block, {})
    assert (tmp_path / "serving" / "1" / "saved_model.pb").exists()
