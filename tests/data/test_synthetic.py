import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ctr_trainer.data import synthetic
from ctr_trainer.data.convert import convert
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError
from tests.data.make import CONFIGS, SPEC, read

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


def test_the_data_is_a_function_of_the_seed(demo, tmp_path):
    generate(tmp_path / "same", seed=2026)
    generate(tmp_path / "other", seed=1)
    first, same, other = (read(path / "train") for path in (demo, tmp_path / "same", tmp_path / "other"))
    for name in first.column_names:
        np.testing.assert_array_equal(first[name].to_numpy(), same[name].to_numpy())
        assert not np.array_equal(first[name].to_numpy(), other[name].to_numpy())


def test_frequent_values_carry_signal(demo):
    # Frequencies of the training part, by the value of a field of few values, must tell test clicks apart.
    train, test = read(demo / "train"), read(demo / "test")
    scores = np.zeros(len(test))
    for name in ("C6", "C9", "C14", "C17", "C20", "C22", "C23", "C25"):
        values, places = np.unique(train[name].to_numpy(), return_inverse=True)
        clicks = np.bincount(places, weights=train["label"].to_numpy())
        rates = np.log((clicks + 1) / (np.bincount(places) - clicks + 3))
        asked = test[name].to_numpy()
        at = np.minimum(np.searchsorted(values, asked), len(values) - 1)
        scores += np.where(values[at] == asked, rates[at], 0)
    assert roc_auc_score(test["label"].to_numpy(), scores) > 0.6


def test_auc_is_exact_with_ties():
    assert synthetic.auc(np.array([0, 1, 0, 1]), np.array([0.1, 0.2, 0.3, 0.4])) == 0.75
    assert synthetic.auc(np.array([0, 1]), np.array([0.5, 0.5])) == 0.5
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 500), rng.integers(0, 20, 500)
    assert synthetic.auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_values_of_a_field_are_distinct_hex_digits():
    text = synthetic._text(3, np.arange(-1, 100_000)).to_pylist()
    assert text[0] is None and len(set(text)) == 100_001
    assert all(len(t) == 8 and int(t, 16) >= 0 for t in text[1:])


def test_draws_follow_the_probabilities():
    drawn = synthetic._draw(np.random.default_rng(0), 200_000, 5, 1.0)
    np.testing.assert_allclose(np.bincount(drawn) / 200_000, synthetic._probabilities(5, 1.0), atol=0.005)


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
