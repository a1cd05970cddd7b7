"""The features that a `model_fn` reads. The tensor of a name is made when the model first asks for the name."""

import abc
from collections.abc import Mapping

import tensorflow as tf

from ctr_trainer.features.transforms import dense_transform

EMBEDDING, LINEAR, FEATURE, SEQUENCE, MASK = "embedding", "linear", "feature", "sequence", "sequence_mask"


class Features(Mapping, abc.ABC):
    """The tensors that a feature spec offers to a model. A table has columns only for what the model asks for.

    | name | tensor |
    |---|---|
    | `dense` | float32[B, n], the dense features after their transforms |
    | `embedding` | float32[B, F, dim], one vector per feature; all features must have the same dim |
    | `embedding/dim16` | float32[B, F16, 16], the vectors of table `dim16`: single-valued features, then bags |
    | `feature/<name>` | float32[B, dim], the vector of one single-valued feature or bag |
    | `linear` | float32[B, F, 1], one weight per feature |
    | `sequence/<name>` | float32[B, L, dim], the vectors of a sequence in order, then zeros |
    | `sequence_mask/<name>` | float32[B, L], 1 where the sequence has a value, then zeros |
    | `weight` | float32[B], the example's weight; 0 for padding |

    `embedding` and `linear` leave sequences out. A sequence's values share the rows of the sequence's slot.

    The tensor of each table and of each sequence is contiguous: a slice of one wide tensor would cost a copy in the
    forward pass and one in the backward pass.

    Caveat: `feature/<name>` is such a slice of `embedding/dimD`. Ask for it only for the few features that a model
    treats on their own, as DIN does with its target.

    Attributes:
      spec: FeatureSpec.
      statistics: dict of feature name -> what conversion computed from the training data.
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
        tables = self._pooled_tables()
        names = [*([LINEAR] if tables else []), "weight", *(f"{EMBEDDING}/{table.name}" for table in tables)]
        names += [EMBEDDING] if len(tables) == 1 else []
        names += ["dense"] if self.spec.dense else []
        names += [f"{FEATURE}/{f.name}" for table in tables for f in table.pooled]
        return iter(names + [f"{kind}/{f.name}" for f in self.spec.sequences for kind in (SEQUENCE, MASK)])

    def __contains__(self, name):
        """Whether the spec offers the name. `Mapping.__contains__` would make the tensor to find out."""
        return name in iter(self)

    def __len__(self):
        return sum(1 for _ in self)

    def _make(self, name):
        if name not in self:
            raise KeyError(f"no feature {name!r}; feature spec {self.spec.name!r} offers {', '.join(self)}")
        kind, _, what = name.partition("/")
        if name == "dense":
            return dense_transform(self._raw_dense(), self.spec, self.statistics)
        if name == "weight":
            return self._weight()
        if name == LINEAR:
            parts = [self._segment(table, LINEAR, 1) for table in self._pooled_tables()]
            return parts[0] if len(parts) == 1 else tf.concat(parts, 1)
        if name == EMBEDDING:
            return self[f"{EMBEDDING}/{self._pooled_tables()[0].name}"]
        if kind == EMBEDDING:
            table = next(table for table in self.spec.tables if table.name == what)
            return self._segment(table, EMBEDDING, table.dim)
        if kind == FEATURE:
            return self._slice(what)
        table, feature = next((t, f) for t in self.spec.tables for f in t.sequences if f.name == what)
        return self._sequence(table, feature) if kind == SEQUENCE else self._mask(feature)

    def _pooled_tables(self):
        return [table for table in self.spec.tables if table.pooled]

    def _slice(self, name):
        """-> float32[B, dim], the embedding of one feature."""
        table = next(table for table in self._pooled_tables() if name in [f.name for f in table.pooled])
        return self[f"{EMBEDDING}/{table.name}"][:, [f.name for f in table.pooled].index(name)]

    @abc.abstractmethod
    def _raw_dense(self):
        """-> float32[B, n], NaN where missing."""

    @abc.abstractmethod
    def _weight(self):
        """-> float32[B]."""

    @abc.abstractmethod
    def _segment(self, table, kind, dim):
        """-> float32[B, F, dim] of a `TableFeatures`; kind is EMBEDDING or LINEAR."""

    @abc.abstractmethod
    def _sequence(self, table, feature):
        """-> float32[B, L, dim] of a sequence, a `SparseFeature` of the `TableFeatures`."""

    @abc.abstractmethod
    def _mask(self, feature):
        """-> float32[B, L], 1 where the sequence has a value."""
