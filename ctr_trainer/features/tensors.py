"""The features that a `model_fn` reads: names that become tensors when they are first asked for."""

import abc
import collections
from collections.abc import Mapping

import tensorflow as tf

from ctr_trainer.features.transforms import dense_transform

tf1 = tf.compat.v1

EMBEDDING, LINEAR = "embedding", "linear"


class Features(Mapping, abc.ABC):
    """What a feature spec offers a model; a table holds only what the model asked for.

    | name | tensor |
    |---|---|
    | `dense` | float32[B, n], the dense features after their transforms |
    | `embedding` | float32[B, F, dim], one vector a sparse feature; all features must have one dim |
    | `embedding/dim16` | float32[B, F16, 16], the features of that table: single-valued first, then multi-valued |
    | `linear` | float32[B, F, 1], one weight a sparse feature |
    | `weight` | float32[B], the example's weight; 0 for padding |

    Each table's tensor is contiguous: a slice of one wide tensor would cost a copy each way.
    """

    def __init__(self, spec, statistics):
        self.spec = spec
        self.statistics = statistics
        self._tensors = {}

    def __getitem__(self, name):
        if name not in self._tensors:
            self._tensors[name] = self._make(name)
        return self._tensors[name]

    def __iter__(self):
        names = [LINEAR, "weight"] + [f"{EMBEDDING}/{table.name}" for table in self.spec.tables]
        names += [EMBEDDING] if len(self.spec.tables) == 1 else []
        return iter(names + (["dense"] if self.spec.dense else []))

    def __contains__(self, name):
        """Whether the spec offers it; Mapping's own would make the tensor to find out."""
        return name in iter(self)

    def __len__(self):
        return sum(1 for _ in self)

    def _make(self, name):
        tables = {table.name: table for table in self.spec.tables}
        if name == "dense" and self.spec.dense:
            return dense_transform(self._raw_dense(), self.spec, self.statistics)
        if name == "weight":
            return self._weight()
        if name == LINEAR and tables:
            parts = [self._segment(table, LINEAR, 1) for table in tables.values()]
            return parts[0] if len(parts) == 1 else tf.concat(parts, 1)
        if name == EMBEDDING and len(tables) == 1:
            return self[f"{EMBEDDING}/{next(iter(tables))}"]
        kind, _, table = name.partition("/")
        if kind == EMBEDDING and table in tables:
            return self._segment(tables[table], EMBEDDING, tables[table].dim)
        raise KeyError(f"no feature {name!r}; feature spec {self.spec.name!r} offers {', '.join(self)}")

    @abc.abstractmethod
    def _raw_dense(self):
        """-> float32[B, n], NaN where missing."""

    @abc.abstractmethod
    def _weight(self):
        """-> float32[B]."""

    @abc.abstractmethod
    def _segment(self, table, kind, dim):
        """-> float32[B, F, dim] of a `TableFeatures`; kind is EMBEDDING or LINEAR."""


class FedFeatures(Features):
    """Features whose values are fed at each step: rows looked up outside the graph.

    Attributes:
      segments: by table name, {kind: placeholder float32[B, F, dim]}, as far as the model asked for them.
      gradients: by placeholder name, the gradient of the loss, once `TrainOp` or the Estimator has made them.
      learning_rate: of the embeddings in this job, a scalar tensor or None.
      learning_rate_scale: by which the job's learning rates grow with its workers; None for as many as there are.
    """

    def __init__(self, spec, statistics, batch_size):
        super().__init__(spec, statistics)
        self.batch_size = batch_size
        self.segments = collections.defaultdict(dict)
        self.gradients = {}
        self.learning_rate = None
        self.learning_rate_scale = None
        self.labels = tf1.placeholder(tf.float32, [batch_size], "labels")
        self.weights = tf1.placeholder(tf.float32, [batch_size], "weights")
        self.dense = tf1.placeholder(tf.float32, [batch_size, len(spec.dense)], "dense")

    @property
    def placeholders(self):
        """-> the placeholders of all segments, in a fixed order."""
        return [tensor for kinds in self.segments.values() for tensor in kinds.values()]

    def _raw_dense(self):
        return self.dense

    def _weight(self):
        return self.weights

    def _segment(self, table, kind, dim):
        count = len(table.single) + len(table.bags)
        tensor = tf1.placeholder(tf.float32, [self.batch_size, count, dim], f"{kind}_{table.name}")
        self.segments[table.name][kind] = tensor
        return tensor
