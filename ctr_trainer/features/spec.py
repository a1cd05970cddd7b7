"""The feature spec: which columns of a data set are trained on, and how each becomes numbers."""

import dataclasses
import functools

from ctr_trainer.features import toml
from ctr_trainer.features.csv_format import CsvFormat
from ctr_trainer.features.dense import TRANSFORMS, DenseFeature
from ctr_trainer.features.label import Label
from ctr_trainer.features.limits import TableLimits
from ctr_trainer.features.sparse import COMBINERS, SparseFeature
from ctr_trainer.messages.errors import UserError

__all__ = [
    "COMBINERS",
    "TRANSFORMS",
    "CsvFormat",
    "DenseFeature",
    "FeatureSpec",
    "Label",
    "SparseFeature",
    "TableFeatures",
    "TableLimits",
]

# What stands before the names of a data set's other columns (see data/columns.py).
RESERVED_PREFIXES = ("id:", "label:", "time:", "weights:")


@dataclasses.dataclass(frozen=True)
class TableFeatures:
    """The sparse features whose embeddings live in one table, in the spec's order.

    Attributes:
      single: of one value a row, bucketised ones among them.
      bags: pooled to one vector a row.
      sequences: of several vectors a row.
    """

    name: str
    dim: int
    single: tuple[SparseFeature, ...]
    bags: tuple[SparseFeature, ...]
    sequences: tuple[SparseFeature, ...] = ()

    @property
    def pooled(self):
        """The features of one vector a row, in the order of the table's tensor."""
        return self.single + self.bags


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """All that conversion, training and an exported graph know of a data set's columns.

    Attributes:
      label: the first, or only, label.
      ids: columns kept beside the features for the predictions' output and grouped metrics; not trained on.
      weight: column of the examples' weights; None for weight 1.
      limits: of the tables that have any.
      other_labels: the labels after the first; see `labels`.
      labelled: whether the data have the labels; False for data to predict on only, see `without_labels`. It is a data
        set's to keep: no TOML and no `to_dict` has it.

    Raises:
      UserError: two features or labels of one name, one slot with two dims, no feature at all.
    """

    name: str
    label: Label
    dense: tuple[DenseFeature, ...]
    sparse: tuple[SparseFeature, ...]
    ids: tuple[str, ...] = ()
    weight: str | None = None
    csv: CsvFormat = CsvFormat()
    limits: tuple[TableLimits, ...] = ()
    other_labels: tuple[Label, ...] = ()
    labelled: bool = True

    def __post_init__(self):
        _check(self)

    @classmethod
    def load(cls, path):
        """Reads a TOML file; see `features/toml.py` for its form.

        Raises:
          UserError: no such file, not TOML, or a key or value that no spec has; names file, feature and key.
        """
        return toml.load(path, cls)

    @classmethod
    def from_dict(cls, values, source="feature spec"):
        """The inverse of `to_dict`; `source` is what errors call it."""
        return toml.parse(values, source, cls)

    def to_dict(self):
        """-> the spec as JSON-able values, written out in full; None is left out."""
        values = dataclasses.asdict(self, dict_factory=_without_none)
        others, _ = values.pop("other_labels"), values.pop("labelled")
        return values | {"label": [values["label"], *others]} if others else values

    def with_dim(self, dim):
        """-> this spec with every sparse feature's dim replaced, where they differ from it.

        Raises:
          UserError: the features become one table of several that have limits of their own.
        """
        if all(feature.dim == dim for feature in self.sparse):
            return self
        if len(self.limits) > 1:
            raise UserError(f"feature spec {self.name!r}: its tables have [[limits]] of their own, so no dim for all")
        limits = tuple(dataclasses.replace(each, table=f"dim{dim}") for each in self.limits)
        sparse = tuple(dataclasses.replace(f, dim=dim) for f in self.sparse)
        return dataclasses.replace(self, sparse=sparse, limits=limits)

    def without_labels(self):
        """-> this spec for data whose labels and weights are not read, if they have any: what a prediction needs."""
        return dataclasses.replace(self, labelled=False, weight=None)

    def limits_of(self, table):
        """-> the TableLimits of a table, by name; with none set where the spec has none."""
        return next((each for each in self.limits if each.table == table), TableLimits(table))

    @property
    def labels(self):
        """All labels, in the spec's order."""
        return (self.label, *self.other_labels)

    @functools.cached_property
    def tables(self):
        """The sparse features grouped by dim; tables and features stand in the spec's order."""
        dims = dict.fromkeys(f.dim for f in self.sparse)
        return tuple(
            TableFeatures(
                f"dim{dim}",
                dim,
                tuple(f for f in self.sparse if f.dim == dim and f.combiner is None),
                tuple(f for f in self.sparse if f.dim == dim and f.is_bag),
                tuple(f for f in self.sparse if f.dim == dim and f.is_sequence),
            )
            for dim in dims
        )

    @property
    def bags(self):
        """The features that are pooled from several values, in the spec's order."""
        return tuple(f for f in self.sparse if f.is_bag)

    @property
    def sequences(self):
        """The features that are sequences of values, in the spec's order."""
        return tuple(f for f in self.sparse if f.is_sequence)

    @property
    def bucketised(self):
        """The sparse features that are made of numbers, in the spec's order."""
        return tuple(f for f in self.sparse if f.is_bucketised)


def _without_none(items):
    return {k: list(v) if isinstance(v, tuple) else v for k, v in items if v is not None}


def _check(spec):
    where = f"feature spec {spec.name!r}"
    names = ["label", "weight", *(f.name for f in (*spec.dense, *spec.sparse))]
    for taken, what in (
        (names, "a feature's name, and 'label' and 'weight' are taken"),
        (list(spec.ids), "'ids'"),
        ([label.name for label in spec.labels], "a label's name"),
    ):
        for name in taken:
            if taken.count(name) > 1:
                raise UserError(f"{where}: {name!r} stands twice, and must not ({what})")
    for name in names:
        if name.startswith(RESERVED_PREFIXES):
            raise UserError(f"{where}: {name!r}: no feature's name starts with {', '.join(RESERVED_PREFIXES)}")
    if not spec.dense and not spec.sparse:
        raise UserError(f"{where}: it has no feature; add a [[dense]] or a [[sparse]] one")
    _check_limits(spec, where)
    slots = {}
    for f in spec.sparse:
        first = slots.setdefault(f.slot, f)
        if first.dim != f.dim:
            raise UserError(
                f"{where}: {first.name!r} (dim {first.dim}) and {f.name!r} (dim {f.dim}) share slot {f.slot!r}, "
                "so they share rows and must have one dim"
            )


def _check_limits(spec, where):
    tables = [f"dim{dim}" for dim in dict.fromkeys(f.dim for f in spec.sparse)]
    limited = [each.table for each in spec.limits]
    for table in limited:
        if table not in tables or limited.count(table) > 1:
            raise UserError(
                f"{where}: [[limits]]: table {table!r} is there {limited.count(table)} times; each of "
                f"{', '.join(tables) or 'no table'} may be once"
            )
