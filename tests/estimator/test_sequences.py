"""Sequences, single features and several labels as a `model_fn` gets them, through a whole training."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.data.batch import Bag, Batch
from ctr_trainer.estimator import EmbeddingConfig, Estimator, EstimatorSpec, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from tests.constant import CONSTANT

tf1 = tf.compat.v1
VALUES = {
    "name": "s",
    "label": {"column": "y"},
    "sparse": [
        {"name": "item", "dim": 2},
        {"name": "tags", "dim": 2, "combiner": "sum"},
        {"name": "history", "slot": "item", "dim": 2, "combiner": "none", "max_length": 3},
    ],
}
SPEC = FeatureSpec.from_dict(VALUES)


class Batches:
    """An input of one batch, time and again: items 1 and 2, with the histories (2, 1) and none.

    With `unknown` the second example has an item, a tag and a history that the others do not have.
    """

    statistics, batch_size = {}, 2

    def __init__(self, spec=SPEC, labels=(1, 0), batches=1, unknown=False):
        self.spec, self._labels, self._batches, self._unknown = spec, np.float32(labels), batches, unknown

    def __iter__(self):
        keys, ones = {"dim2": np.int64([[1], [2]])}, np.ones(2, np.float32)
        bags = {
            "tags": Bag(np.int64([7, 8]), np.int32([0, 2, 2])),
            "history": Bag(np.int64([2, 1]), np.int32([0, 2, 2])),
        }
        if self._unknown:
            keys["dim2"][1], splits = 91, np.int32([0, 2, 3])
            bags = {"tags": Bag(np.int64([7, 8, 92]), splits), "history": Bag(np.int64([2, 1, 93]), splits)}
        for _ in range(self._batches):
            yield Batch(2, keys, bags, np.empty((2, 0), np.float32), self._labels, ones)


class Fetch(tf1.train.SessionRunHook):
    """The values of some tensors, by name, at each step."""

    def __init__(self, names):
        self._names, self.values = names, []

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs({name: f"{name}:0" for name in self._names})

    def after_run(self, run_context, run_values):
        self.values.append(run_values.results)


def _train(model_dir, loss_of, batches, names=(), spec=SPEC, labels=(1, 0), stddev=0.5):
    """Trains with plain SGD at the rate 1 on `loss_of(features, labels)`. -> what `names` were at each step"""

    def model_fn(features, labels, mode, params):
        loss, predictions = loss_of(features, labels)
        loss += 0 * tf1.get_variable("a_dense_variable", [], tf.float32)
        train_op = TrainOp("sgd", 1.0, 1.0, **CONSTANT)(loss, features) if mode == "train" else None
        return EstimatorSpec(mode, predictions, loss, train_op)

    fetch = Fetch(names)
    embedding = EmbeddingConfig(optimizer="sgd", learning_rate=1.0, stddev=stddev)
    estimator = Estimator(model_fn, model_dir, None, RunConfig(threads=1, embedding=embedding))
    estimator.train(lambda: Batches(spec, labels, batches), hooks=[fetch])
    return estimator, fetch.values


def test_a_sequence_reads_and_trains_the_rows_that_it_shares(tmp_path):
    def loss_of(features, labels):
        history = tf.identity(features["sequence/history"], "history")
        mask = tf.identity(features["sequence_mask/history"], "mask")
        item = tf.identity(features["feature/item"], "item")
        return tf.reduce_sum(history * mask[..., None]) + 10 * tf.reduce_sum(item[0]), {"output": item}

    _, (first, second) = _train(tmp_path, loss_of, 2, ("history", "mask", "item"))
    row_1, row_2 = first["item"]
    assert row_1.any() and row_2.any()
    np.testing.assert_array_equal(first["history"], [[row_2, row_1, [0, 0]], np.zeros((3, 2))])
    np.testing.assert_array_equal(first["mask"], [[1, 1, 0], [0, 0, 0]])
    # Item 1 has the gradient 1 of the history and 10 of itself, item 2 that of the history.
    np.testing.assert_allclose(second["item"], [row_1 - 11, row_2 - 1], rtol=1e-6)
    np.testing.assert_allclose(second["history"][0], [row_2 - 1, row_1 - 11, [0, 0]], rtol=1e-6)


def test_behaviours_read_and_train_the_rows_that_they_share(tmp_path):
    def loss_of(features, labels):
        history = features.behaviours("history")
        assert features.behaviours("history").pairs is history.pairs
        tf.identity(history.pairs, "pairs")
        vectors = tf.identity(history.vectors, "vectors")
        item = tf.identity(features["feature/item"], "item")
        pooled = tf.identity(history.sum(tf.constant([1.0, 3.0]), tf.shape(item)[0]), "pooled")
        linear = 0 * tf.reduce_sum(features["linear"])  # The rows have a linear weight behind the vector.
        return tf.reduce_sum(pooled) + 10 * tf.reduce_sum(item[0]) + linear, {"output": vectors[:2] + 0 * item}

    _, (first, second) = _train(tmp_path, loss_of, 2, ("vectors", "pairs", "item", "pooled"))
    row_1, row_2 = first["item"]
    np.testing.assert_array_equal(first["vectors"][:2], [row_1, row_2])
    assert first["vectors"].shape == (5, 2) and not first["vectors"][4].any()  # Items 1 and 2, tags 7 and 8, no value.
    np.testing.assert_array_equal(first["pairs"], [[0, 1], [0, 0]])
    np.testing.assert_allclose(first["pooled"], [row_2 + 3 * row_1, [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(second["item"], [row_1 - 13, row_2 - 1], rtol=1e-6)
    np.testing.assert_array_equal(second["vectors"][:2], second["item"])


def test_a_sequence_read_with_and_without_padding_has_both_gradients(tmp_path):
    def loss_of(features, labels):
        history = features.behaviours("history")
        pooled = history.sum(tf.constant([1.0, 3.0]), 2)
        padded = tf.identity(features["sequence/history"], "history")
        return tf.reduce_sum(pooled) + 10 * tf.reduce_sum(padded), {"output": pooled}

    _, (first, second) = _train(tmp_path, loss_of, 2, ("history",))
    np.testing.assert_allclose(second["history"][0, :2], first["history"][0, :2] - [[11], [13]], rtol=1e-6)


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (["sequence/history"], 2),
        (["feature/tags", "feature/item"], 4),  # The items 1 and 2, the tags 7 and 8.
    ],
)
def test_a_model_has_rows_only_of_the_features_that_it_reads(tmp_path, names, rows):
    def loss_of(features, labels):
        return sum(tf.reduce_sum(features[name]) for name in names), {"output": features[names[0]]}

    estimator, _ = _train(tmp_path, loss_of, 1)
    (entry,) = estimator.latest_checkpoint().tables
    assert entry["rows"] == rows


def test_a_key_that_training_never_saw_reads_zeros_and_stays_in_the_mask(tmp_path):
    def loss_of(features, labels):
        names = ("feature/item", "feature/tags", "sequence/history", "sequence_mask/history")
        predictions = {name: tf.identity(features[name]) for name in names}
        return sum(map(tf.reduce_sum, predictions.values())), predictions

    estimator, _ = _train(tmp_path, loss_of, 1)
    known, unknown = estimator.predict(lambda: Batches(unknown=True))
    assert known["feature/item"].all() and known["feature/tags"].all() and known["sequence/history"][:2].all()
    assert not unknown["feature/item"].any() and not unknown["feature/tags"].any()
    assert unknown["sequence/history"].tolist() == [[0, 0]] * 3 and unknown["sequence_mask/history"].tolist() == [
        1,
        0,
        0,
    ]


def test_a_behaviour_that_training_never_saw_has_a_vector_of_zeros(tmp_path):
    def loss_of(features, labels):
        history = features.behaviours("history")
        vectors = history.of_vectors(tf.reduce_sum(history.vectors, 1))
        pooled = tf.math.unsorted_segment_sum(vectors, history.pairs[:, 0], 2)
        return tf.reduce_sum(pooled), {"sums": pooled, "sizes": tf.math.bincount(history.pairs[:, 0], minlength=2)}

    estimator, _ = _train(tmp_path, loss_of, 1)
    known, unknown = estimator.predict(lambda: Batches(unknown=True))
    assert known["sums"] != 0 and known["sizes"] == 2
    assert unknown["sums"] == 0 and unknown["sizes"] == 1


def test_several_labels_are_a_dict_with_metrics_of_their_own(tmp_path):
    labels = [{"column": "a"}, {"column": "b", "name": "bought", "weight": 0.5}]
    spec = FeatureSpec.from_dict(VALUES | {"label": labels})

    def loss_of(features, labels):
        assert list(labels) == ["a", "bought"] and all(tensor.shape == [2] for tensor in labels.values())
        score = tf.reduce_sum(features["linear"], [1, 2]) + tf1.get_variable("bias", [], tf.float32)
        logits = {f"logits/{name}": score for name in labels}
        return tf.reduce_sum(tf.square(score - labels["a"])), logits

    estimator, _ = _train(tmp_path, loss_of, 3, spec=spec, labels=[[1, 0], [0, 1]])
    results = estimator.evaluate(lambda: Batches(spec, [[1, 0], [0, 1]]))
    assert results["auc/a"] == 1 - results["auc/bought"]
    assert results["real_mean/a"] == results["real_mean/bought"] == 0.5
    assert results["examples"] == 2 and {"logloss/a", "prob_mean/bought"} < results.keys()
    with pytest.raises(Exception, match="the model in .* was trained with .*: the labels y, not a, bought"):
        estimator.evaluate(lambda: Batches())


def test_features_are_offered_by_name():
    with tf.Graph().as_default():
        features = FedFeatures(SPEC, {}, 2)
        assert set(features) == {
            "embedding",
            "embedding/dim2",
            "linear",
            "weight",
            "feature/item",
            "feature/tags",
            "sequence/history",
            "sequence_mask/history",
        }
        for name in ("feature/history", "sequence/item", "sequence/none", "embedding/dim3", "dense", "sequence"):
            assert name not in features
            with pytest.raises(KeyError, match=f"no feature '{name}'; feature spec 's' offers linear"):
                features[name]
        assert features["sequence/history"].shape == [2, 3, 2]
        assert features["embedding"].shape == [2, 2, 2]
