"""K workers in one process: the caches, the store and the merges of a real job, and one graph for all of them.

What is as in a job of K processes: each worker's batches (`BatchReader` with its rank), its `RowCache` with lookups,
steps and syncs, the turns that the workers take over a window, the merge and the learning rates. The dense gradients
are averaged by computing them in one graph, over the K batches side by side, which is what the allreduce of equal
batches makes. What is not: a sync here is done before the next step, and no lookup runs ahead; a job does both beside
its steps, so its rows are older by up to `--prefetch_batches` and by the steps that a sync takes.
"""

import collections
import dataclasses
import pathlib

import numpy as np
import tensorflow as tf

from ctr_trainer.data.convert import convert
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import merging
from ctr_trainer.embedding.worker.row_cache import RowCache
from ctr_trainer.estimator.table_inputs import TableInputs
from ctr_trainer.features.fed import FedFeatures
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import EMBEDDING, LINEAR
from ctr_trainer.graph_notes.estimator_spec import ModeKeys
from ctr_trainer.metrics.auc import AUC
from ctr_trainer.models import deepfm
from ctr_trainer.models.params import ModelParams
from ctr_trainer.settings.row_optimizer import ROW_OPTIMIZERS

tf1 = tf.compat.v1

SPEC = pathlib.Path(__file__).parents[1] / "configs" / "features" / "movielens.toml"
SPLIT = "random:0.8,0.1,0.1"
HIDDEN_UNITS = (64, 32)
DENSE_LEARNING_RATE, DENSE_ACCUMULATOR = 0.02, 0.1
STDDEV = 0.01


@dataclasses.dataclass(frozen=True)
class Point:
    """One training run.

    Attributes:
      learning_rate: of the rows, for one worker.
      accumulator: what sums of squares start at.
    """

    optimizer: str
    workers: int
    sync_steps: int
    merge: str
    seed: int
    learning_rate: float
    accumulator: float


def convert_movielens(source, work):
    """-> the converted data below `work`, made at the first call."""
    output = pathlib.Path(work) / "movielens"
    if not (output / "test" / "_dataset.json").is_file():
        convert("movielens", str(source), output, FeatureSpec.load(SPEC), split=SPLIT)
    return output


class Simulation:
    """Trains and tests one point after the other, from the same start for the same seed.

    Args:
      data: of `convert_movielens`.
      batch_size: of all workers together.
      epochs: over the training data.
      part: `test` or `valid`.
    """

    def __init__(self, data, batch_size, epochs, part="test"):
        self._data, self._batch_size, self._epochs = data, batch_size, epochs
        reader = BatchReader(data / part, batch_size, shuffle=False, epochs=1)
        self._spec, self._statistics = reader.spec, reader.statistics
        (self._table,) = self._spec.tables
        self._test = self._prepared(reader)
        self._graph_of = self._batches_of = (None, None)

    def run(self, point, late=0):
        """-> the AUC of the part.

        Args:
          point: `Point`.
          late: steps by which the gradients of one worker's rows come late; with several workers 0.
        """
        store, scales = LocalStore(), (STDDEV * 3**0.5, 0.0)
        own = {"initial_accumulator": point.accumulator} if "adagrad" in point.optimizer else {}
        optimizer = ROW_OPTIMIZERS[point.optimizer](**own)
        config = TableConfig(self._table.name, (self._table.dim, 1), scales, optimizer, point.seed)
        store.create_table(config)
        graph, count = self._graph(point.seed), point.workers
        sources = [store.tables[config.name]]
        if count > 1:
            shares = merging.shares(config, point.merge, count)
            sources = [RowCache(store, config, f"rank{rank}", shares=shares) for rank in range(count)]
        factor = merging.gradient_factor(point.optimizer, point.merge, count, scale=1.0)
        graph.reset()
        waiting = collections.deque()
        for step, batches in enumerate(self._batches(point.seed, count), start=1):
            slots = [source.find_or_create(lookup.unique) for source, (_, lookup) in zip(sources, batches, strict=True)]
            found = list(zip(sources, slots, strict=True))
            gradients = graph.step(graph.feed(config, batches, found))
            weights = [batch.weights.sum() for batch, _ in batches]
            size = self._batch_size // count
            for rank, (source, (_, lookup)) in enumerate(zip(sources, batches, strict=True)):
                # Of the loss that is a mean over this worker's own examples.
                own = np.float32(factor * sum(weights) / max(weights[rank], 1))
                part = slice(rank * size, (rank + 1) * size)
                sums = [
                    lookup.sum_gradients(dim, gradient[part]) * own
                    for dim, gradient in zip(config.dims, gradients, strict=True)
                ]
                waiting.append((source, slots[rank], sums))
            apply_late(waiting, late, point.learning_rate)
            if count > 1:
                for rank, cache in enumerate(sources):
                    if (step + rank * point.sync_steps // count) % point.sync_steps == 0:
                        cache.sync()
        apply_late(waiting, 0, point.learning_rate)
        for cache in sources if count > 1 else ():
            cache.flush()
        return self._auc(graph, config, store.tables[config.name])

    def _auc(self, graph, config, table):
        auc = AUC()
        for batch, lookup in self._test:
            feed = graph.feed(config, [(batch, lookup)], [(table, table.find(lookup.unique))])
            auc.update(graph.logits(feed), batch.labels, batch.weights)
        return auc.result()

    def _prepared(self, reader):
        """-> [(Batch, Lookup)]"""
        inputs, prepared = TableInputs(self._table, {EMBEDDING: None, LINEAR: None}), []
        for batch in reader:
            prepared.append((batch, inputs.lookup(batch)))
        return prepared

    def _batches(self, seed, count):
        """-> for each step, [(Batch, Lookup)] by worker."""
        if self._batches_of[0] != (seed, count):
            self._batches_of = (None, None)
            size = self._batch_size // count
            readers = [
                BatchReader(self._data / "train", size, rank, count, seed=seed, epochs=self._epochs)
                for rank in range(count)
            ]
            self._batches_of = (seed, count), list(zip(*map(self._prepared, readers), strict=True))
        return self._batches_of[1]

    def _graph(self, seed):
        if self._graph_of[0] != seed:
            self._graph_of = seed, _Graph(self._spec, self._statistics, self._batch_size, seed)
        return self._graph_of[1]


class _Graph:
    """DeepFM with its rows fed, and Adagrad for its dense variables."""

    def __init__(self, spec, statistics, batch_size, seed):
        with tf.Graph().as_default() as graph:
            tf1.set_random_seed(seed)
            self._features = FedFeatures(spec, statistics, batch_size)
            labels = self._features.labels
            params = ModelParams(self._train_op, HIDDEN_UNITS)
            built = deepfm.model_fn(self._features, labels, ModeKeys.TRAIN, params)
            self._logits, self._train = built.predictions["logits"], built.train_op
            variables = tf1.global_variables()
            options = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
            self._session = tf1.Session(graph=graph, config=options)
            self._session.run(tf1.global_variables_initializer())
            # Run again, the initializers would draw other values.
            starts = self._session.run(variables)
            self._start = {v.initializer.inputs[1]: value for v, value in zip(variables, starts, strict=True)}
            self._initialize = tf.group(*(v.initializer for v in variables))

    def _train_op(self, loss, features):
        (segments,) = features.segments.values()
        self._rows = [segments[EMBEDDING], segments[LINEAR]]
        self._gradients = tf.gradients(loss, self._rows)
        optimizer = tf1.train.AdagradOptimizer(DENSE_LEARNING_RATE, DENSE_ACCUMULATOR)
        return optimizer.minimize(loss)

    def reset(self):
        """Sets all variables to what they were at the start."""
        self._session.run(self._initialize, self._start)

    def feed(self, config, batches, found):
        """-> feed_dict of batches side by side.

        Args:
          batches: [(Batch, Lookup)].
          found: for each of them (source of the rows, slots of the lookup's keys).
        """
        features, start, feed = self._features, 0, {}
        lookups = [lookup for _, lookup in batches]
        taken = [
            lookup.take(source.rows, slots, sum(config.dims))
            for (source, slots), lookup in zip(found, lookups, strict=True)
        ]
        for tensor, dim in zip(self._rows, config.dims, strict=True):
            feed[tensor] = _joined([own.gather(rows, start, dim) for own, rows in zip(lookups, taken, strict=True)])
            start += dim
        feed[features.labels] = _joined([batch.labels for batch, _ in batches])
        feed[features.weights] = _joined([batch.weights for batch, _ in batches])
        feed[features.dense] = _joined([batch.dense for batch, _ in batches])
        return feed

    def step(self, feed):
        """One step of the dense variables. -> float32[B, F, dim] of each segment, the gradients of the mean loss."""
        return self._session.run([self._gradients, self._train], feed)[0]

    def logits(self, feed):
        """-> float32[B]"""
        return self._session.run(self._logits, feed)


def apply_late(waiting, late, learning_rate):
    """Applies gradients until no more than `late` of them wait."""
    while len(waiting) > late:
        source, slots, sums = waiting.popleft()
        source.apply_gradients(slots, sums, learning_rate)


def _joined(parts):
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
