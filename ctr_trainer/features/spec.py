"""The feature spec: which columns of a data set are trained on, and how each becomes numbers."""

import dataclasses
import functools

from ctr_trainer.errors import UserError

TRANSFORMS = ("none", "log1p", "standardize", "minmax")
COMBINERS = ("sum", "mean")


@dataclasses.dataclass(frozen=True)
class DenseFeature:
    """A number.

    Attributes:
      name: unique in the spec.
      column: of the source data.
      transform: `none`, `log1p` (sign(x) * log1p(|x|)), `standardize` or `minmax` (by the training data's statistics).
      default: what a missing value is taken for, before the transform.
    """

    name: str
    column: str
    transform: str = "none"
    default: float = 0.0


@dataclasses.dataclass(frozen=True)
class SparseFeature:
    """A categorical feature: one value a row, or, with a `combiner`, a bag of values.

    Attributes:
      name: unique in the spec.
      column: of the source data.
      dim: width of its embedding.
      slot: what is hashed along with a value; features of one slot share their rows, and so have one dim.
      combiner: None for a single value; `sum` or `mean` for a bag.
      separator: between the values of a bag in one source field.
      max_length: a bag keeps its first `max_length` values; 0 for all of them.
    """

    name: str
    column: str
    dim: int
    slot: str
    combiner: str | None = None
    separator: str = "|"
    max_length: int = 0


@dataclasses.dataclass(frozen=True)
class Label:
    """The 0/1 target: `value == positive`, or `number >= threshold`, or, with neither, the column's own 0 and 1."""

    column: str
    positive: str | None = None
    threshold: float | None = None


@dataclasses.dataclass(frozen=True)
class CsvFormat:
    """How the `csv` format is read.

    Attributes:
      delimiter: one character.
      header: whether a file's first line names its columns.
      columns: names of the columns, in order; required without a header, in place of its names with one.
      null_values: fields that stand for a missing value.
      strip: remove white space around every field.
      label_suffix: an ending that some files' labels carry and that is not part of them, as Adult's `.`.
    """

    delimiter: str = ","
    header: bool = True
    columns: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ("",)
    strip: bool = False
    label_suffix: str = ""


@dataclasses.dataclass(frozen=True)
class TableLimits:
    """Which keys of one table have rows; see `embedding.config.TableConfig` for each.

    Attributes:
      table: its name, `dim16` for the features of dim 16.
    """

    table: str
    min_frequency: int = 0
    max_rows: int = 0
    eviction: str = "lru"
    ttl_steps: int = 0


@dataclasses.dataclass(frozen=True)
class TableFeatures:
    """The sparse features whose embeddings live in one table, in the spec's order."""

    name: str
    dim: int
    single: tuple[SparseFeature, ...]
    bags: tuple[SparseFeature, ...]


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """All that conversion, training and an exported graph know of a data set's columns.

    Attributes:
      ids: columns kept beside the features for the predictions' output and grouped metrics; not trained on.
      weight: column of the examples' weights; None for weight 1.
      limits: of the tables that have any.

    Raises:
      UserError: two features of one name, one slot with two dims, no feature at all.
    """

    name: str
    label: Label
    dense: tuple[DenseFeature, ...]
    sparse: tuple[SparseFeature, ...]
    ids: tuple[str, ...] = ()
    weight: str | None = None
    csv: CsvFormat = CsvFormat()
    limits: tuple[TableLimits, ...] = ()

    def __post_init__(self):
        _check(self)

    @staticmethod
    def load(path):
        """Reads a TOML file; see `features/toml.py` for its form.

        Raises:
          UserError: no such file, not TOML, or a key or value that no spec has; names file, feature and key.
        """
        from ctr_trainer.features import toml

        return toml.load(path)

    @staticmethod
    def from_dict(values, source="feature spec"):
        """The inverse of `to_dict`; `source` is what errors call it."""
        from ctr_trainer.features import toml

        return toml.parse(values, source)

    def to_dict(self):
        """-> the spec as JSON-able values, written out in full; None is left out."""
        return dataclasses.asdict(self, dict_factory=_without_none)

    def with_dim(self, dim):
        """-> this spec with every sparse feature's dim replaced.

        Raises:
          UserError: the features become one table of several that have limits of their own.
        """
        if len(self.limits) > 1:
            raise UserError(f"feature spec {self.name!r}: its tables have [[limits]] of their own, so no dim for all")
        limits = tuple(dataclasses.replace(each, table=f"dim{dim}") for each in self.limits)
        sparse = tuple(dataclasses.replace(f, dim=dim) for f in self.sparse)
        return dataclasses.replace(self, sparse=sparse, limits=limits)

    def limits_of(self, table):
        """-> the TableLimits of a table, by name; with none set where the spec has none."""
        return next((each for each in self.limits if each.table == table), TableLimits(table))

    @functools.cached_property
    def tables(self):
        """The sparse features grouped by dim; tables and features stand in the spec's order."""
        dims = dict.fromkeys(f.dim for f in self.sparse)
        return tuple(
            TableFeatures(
                f"dim{dim}",
                dim,
                tuple(f for f in self.sparse if f.dim == dim and f.combiner is None),
                tuple(f for f in self.sparse if f.dim == dim and f.combiner is not None),
            )
            for dim in dims
        )

    @property
    def bags(self):
        """The multi-valued features, in the spec's order."""
        return tuple(f for f in self.sparse if f.combiner is not None)


def _without_none(items):
    return {k: list(v) if isinstance(v, tuple) else v for k, v in items if v is not None}


def _check(spec):
    where = f"feature spec {spec.name!r}"
    names = ["label", "weight", *(f.name for f in (*spec.dense, *spec.sparse))]
    for taken, what in ((names, "a feature's name, and 'label' and 'weight' are taken"), (list(spec.ids), "'ids'")):
        for name in taken:
            if taken.count(name) > 1:
                raise UserError(f"{where}: {name!r} stands twice, and must not ({what})")
    if not spec.dense and not spec.sparse:
        raise UserError(f"{where}: it has no feature; add a [[dense]] or a [[sparse]] one")
    if spec.label.positive is not None and spec.label.threshold is not None:
        raise UserError(f"{where}: label: give 'positive' or 'threshold', not both")
    tables = [f"dim{dim}" for dim in dict.fromkeys(f.dim for f in spec.sparse)]
    limited = [each.table for each in spec.limits]
    for table in limited:
        if table not in tables or limited.count(table) > 1:
            raise UserError(
                f"{where}: [[limits]]: table {table!r} is there {limited.count(table)} times; each of "
                f"{', '.join(tables) or 'no table'} may be once"
            )
    slots = {}
    for f in spec.sparse:
        first = slots.setdefault(f.slot, f)
        if first.dim != f.dim:
            raise UserError(
                f"{where}: {first.name!r} (dim {first.dim}) and {f.name!r} (dim {f.dim}) share slot {f.slot!r}, "
                "so they share rows and must have one dim"
            )
