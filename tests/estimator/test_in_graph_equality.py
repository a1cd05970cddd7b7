"""The whole training path against the same model with `tf.Variable` embeddings and TensorFlow's own sparse Adagrad."""

import numpy as np
import tensorflow as tf

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator import EmbeddingConfig, Estimator, ModeKeys, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.features.tensors import EMBEDDING, Features
from ctr_trainer.models import deepfm
from ctr_trainer.models.head import binary_head
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.optimizers import RowAdagrad
from tests import golden, small
from tests.constant import CONSTANT

tf1 = tf.compat.v1
STEPS, BATCH_SIZE, LEARNING_RATE, ACCUMULATOR, STDDEV, SEED = 200, 32, 0.05, 0.1, 0.01, 3
PARAMS = ModelParams(TrainOp("adagrad", LEARNING_RATE, LEARNING_RATE, **CONSTANT), hidden_units=(16, 8))


class Recorder(golden.Losses):
    """The dense variables before the first step, and each step's loss."""

    def begin(self):
        self._variables = {v.op.name: v for v in tf1.trainable_variables()}

    def after_create_session(self, session, coord):
        self.initial = session.run(self._variables)


class InGraphFeatures(Features):
    """Embeddings as variables: key number k of the vocabulary is row k, row 0 stands for no value."""

    def __init__(self, spec, statistics, initial_rows):
        super().__init__(spec, statistics)
        (self.table,) = spec.tables
        self.positions = tf1.placeholder(tf.int32, [BATCH_SIZE, len(self.table.single)])
        bags = (*self.table.bags, *self.table.sequences)
        self.bags = {f.name: tf1.placeholder(tf.int32, [BATCH_SIZE, None]) for f in bags}
        self.bag_weights = {f.name: tf1.placeholder(tf.float32, [BATCH_SIZE, None]) for f in bags}
        self.labels, self.weights = (tf1.placeholder(tf.float32, [BATCH_SIZE]) for _ in range(2))
        self.dense_values = tf1.placeholder(tf.float32, [BATCH_SIZE, len(spec.dense)])
        self._rows = initial_rows
        self._variables = {}
        self.placeholders = []

    def feed(self, batch, place):
        """Returns the feed_dict of a Batch; `place` has the row of each key."""
        feed = {
            self.positions: np.vectorize(place.get)(batch.keys[self.table.name]),
            self.dense_values: batch.dense,
            self.labels: batch.labels,
            self.weights: batch.weights,
        }
        for name, bag in batch.bags.items():
            feed[self.bags[name]], feed[self.bag_weights[name]] = _padded(bag, place)
        return feed

    def _raw_dense(self):
        return self.dense_values

    def _weight(self):
        return self.weights

    def _segment(self, table, kind, dim):
        variable = self._variable(table, kind, dim)
        single = tf.gather(variable, self.positions)
        present = tf.cast(tf.not_equal(self.positions, 0), tf.float32)[..., None]
        return tf.concat([single * present, *(self._pooled(f, variable) for f in table.bags)], 1)

    def _sequence(self, table, feature):
        rows = tf.gather(self._variable(table, EMBEDDING, table.dim), self.bags[feature.name])
        rows *= tf.cast(tf.not_equal(self.bags[feature.name], 0), tf.float32)[..., None]
        padding = feature.max_length - tf.shape(rows)[1]
        return tf.ensure_shape(tf.pad(rows, [[0, 0], [0, padding], [0, 0]]), [None, feature.max_length, None])

    def _mask(self, feature):
        present = tf.cast(tf.not_equal(self.bags[feature.name], 0), tf.float32)
        padding = feature.max_length - tf.shape(present)[1]
        return tf.ensure_shape(tf.pad(present, [[0, 0], [0, padding]]), [None, feature.max_length])

    def _pooled(self, feature, variable):
        """By TensorFlow's own function for bags, which knows the combiners and the weights."""
        ids, weights = self.bags[feature.name], self.bag_weights[feature.name]
        where = tf.where(tf.not_equal(ids, 0))
        shape = tf.shape(ids, tf.int64)
        pooled = tf1.nn.safe_embedding_lookup_sparse(
            [variable],
            tf.SparseTensor(where, tf.gather_nd(ids, where), shape),
            tf.SparseTensor(where, tf.gather_nd(weights, where), shape),
            combiner=feature.combiner,
        )
        return tf.reshape(pooled, [BATCH_SIZE, 1, -1])

    def _variable(self, table, kind, dim):
        if kind not in self._variables:
            start = 0 if kind == EMBEDDING else table.dim
            self._variables[kind] = tf1.get_variable(f"in_graph_{kind}", initializer=self._rows[:, start : start + dim])
        return self._variables[kind]


def _model_fn(features, labels, mode, params):
    """DeepFM, and the product of the target with the places of its history."""
    spec = deepfm.model_fn(features, labels, ModeKeys.PREDICT, params)
    history = features["sequence/history"] * tf.reshape(tf.range(1.0, 5.0), [1, 4, 1])
    suits = tf.reduce_sum(history * features["feature/item"][:, None], [1, 2])
    return binary_head(features, labels, mode, params, (spec.predictions["logits"] + suits)[:, None])


def _ours(data, model_dir):
    reader = BatchReader(data, BATCH_SIZE, seed=SEED)
    config = RunConfig(
        seed=SEED,
        threads=1,
        prefetch_batches=0,
        save_checkpoints_steps=0,
        embedding=EmbeddingConfig(
            learning_rate=LEARNING_RATE,
            optimizer=RowAdagrad(initial_accumulator=ACCUMULATOR),
            stddev=STDDEV,
            sync_steps=1,
        ),
    )
    recorder = Recorder(_model_fn)
    Estimator(recorder.model_fn, model_dir, PARAMS, config).train(lambda: reader, hooks=[recorder], max_steps=STEPS)
    return recorder


def _in_graph(data, dense_variables):
    reader = BatchReader(data, BATCH_SIZE, seed=SEED)
    batches = [batch for batch, _ in zip(reader, range(STEPS), strict=False)]
    keys = [np.concatenate([b.keys["dim4"].ravel(), *(bag.values for bag in b.bags.values())]) for b in batches]
    vocabulary = np.concatenate([[0], np.setdiff1d(np.concatenate(keys), [0])])  # not sorted: row 0 is the key 0
    place = {key: index for index, key in enumerate(vocabulary.tolist())}
    rows = Table(
        TableConfig("dim4", (4, 1), (STDDEV * 3**0.5, 0.0), RowAdagrad(initial_accumulator=ACCUMULATOR), SEED)
    ).initial_rows(vocabulary)
    with tf.Graph().as_default():
        features = InGraphFeatures(reader.spec, reader.statistics, rows[:, :5])
        train_op = lambda loss, _: tf1.train.AdagradOptimizer(  # noqa: E731
            LEARNING_RATE, initial_accumulator_value=ACCUMULATOR
        ).minimize(loss)
        params = ModelParams(train_op, hidden_units=PARAMS.hidden_units)
        spec = _model_fn(features, features.labels, ModeKeys.TRAIN, params)
        losses = []
        with tf1.Session(config=distributed.session_config(1)) as session:
            session.run(tf1.global_variables_initializer())
            for variable in tf1.trainable_variables():
                if variable.op.name in dense_variables:
                    variable.load(dense_variables[variable.op.name], session)
            for batch in batches:
                losses.append(session.run([spec.loss, spec.train_op], features.feed(batch, place))[0])
    return losses


def _padded(bag, place):
    """Returns the padded positions of each row's keys, int32[B, longest], and their weights, float32[B, longest]."""
    places, weights = np.zeros((2, BATCH_SIZE, max(1, np.diff(bag.splits).max())))
    for b, (start, stop) in enumerate(zip(bag.splits, bag.splits[1:], strict=False)):
        places[b, : stop - start] = [place[key] for key in bag.values[start:stop].tolist()]
        weights[b, : stop - start] = 1 if bag.weights is None else bag.weights[start:stop]
    return places.astype(np.int32), weights.astype(np.float32)


def test_200_losses_equal_those_with_variables_in_the_graph(tmp_path):
    data = small.make(tmp_path, rows=2000)
    ours = _ours(data, tmp_path / "model")
    expected = _in_graph(data, ours.initial)
    assert len(ours.values) == len(expected) == STEPS
    np.testing.assert_allclose(ours.values, expected, atol=1e-5, rtol=0)
    weights = np.concatenate([batch.bags["topics"].weights for batch in BatchReader(data, BATCH_SIZE, epochs=1)])
    assert {0.25, 1.0, 2.0} < set(weights.tolist())
    assert np.mean(expected[-60:]) < np.mean(expected[:60]) - 0.01  # it learns, so the updates took part
