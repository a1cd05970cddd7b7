"""The raw values that a model reads: the columns of a request and the inputs of an exported graph."""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Sequence

from tensorflow.core.protobuf import saved_model_pb2

from ctr_trainer.features.columns import DenseFeature, SparseFeature
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.messages.errors import UserError

NUMBER, DIGITS, TEXT, TEXTS, WEIGHTED = "number", "number as text", "text", "texts", "weighted texts"
_EXPECTED = {
    NUMBER: "a number, or null for a missing one",
    DIGITS: 'a number, or its text, as "12.5", or null for a missing one',
    TEXT: 'a text, an integer, or null for a missing one; or {"b64": ...} for bytes',
    TEXTS: 'a list of texts or integers, as ["a", "b"], or null for none',
    WEIGHTED: 'a list of texts with weights, as ["a{0}0.5", "b{0}2"], or null for none',
}


@dataclasses.dataclass(frozen=True)
class RawColumn:
    """A column of the source data, which one or more features read.

    Attributes:
      kind: `NUMBER`, `DIGITS`, `TEXT`, `TEXTS` or `WEIGHTED`.
      separator: the text between a value and its weight; None without weights.
      splits: the separators at which bags and sequences split a `TEXT`.
    """

    name: str
    kind: str
    separator: str | None = None
    splits: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        """A description of the allowed values."""
        return _EXPECTED[self.kind].replace("{0}", self.separator or "")

    @property
    def is_list(self) -> bool:
        return self.kind in (TEXTS, WEIGHTED)

    @classmethod
    def of(cls, name: str, features: Sequence[DenseFeature | SparseFeature]) -> "RawColumn":
        """Returns the column that these features read; raises UserError if they cannot read the same values."""
        sparse = [f for f in features if isinstance(f, SparseFeature) and not f.is_bucketised]
        lists = [f for f in sparse if f.combiner is not None]
        separators = {f.weight_separator for f in lists}
        if not sparse:
            return cls(name, NUMBER)
        if len(lists) == len(features) and len({(f.separator, f.brackets, f.weight_separator) for f in lists}) == 1:
            return cls(name, TEXTS if separators == {None} else WEIGHTED, lists[0].weight_separator)
        if separators - {None}:
            raise UserError(
                f"column {name!r}: {', '.join(f.name for f in features)} read it, and not all as weighted values: give "
                "all of them the same 'combiner', 'separator' and 'weight_separator', or write the column twice"
            )
        is_number = len(sparse) < len(features) and all(f.derive for f in sparse)
        return cls(name, DIGITS if is_number else TEXT, splits=tuple(sorted({str(f.separator) for f in lists})))


def by_kind(columns: Iterable[RawColumn]) -> tuple[tuple[RawColumn, ...], ...]:
    """Returns the columns of numbers, those of one text per example, and those of lists; no empty tuple."""
    kinds: tuple[list[RawColumn], ...] = ([], [], [])
    for column in columns:
        kinds[0 if column.kind == NUMBER else 1 + column.is_list].append(column)
    return tuple(tuple(kind) for kind in kinds if kind)


def columns_of(spec: FeatureSpec) -> dict[str, RawColumn]:
    """Returns the columns that the features of a spec read, by name."""
    features = [f for f in spec.features if f.column not in spec.looked_up]
    features += [SparseFeature(each.name, each.key, 1, "") for each in spec.lookups_read]  # They read texts, too.
    names = dict.fromkeys(f.column for f in features)
    return {name: RawColumn.of(name, [f for f in features if f.column == name]) for name in names}


@dataclasses.dataclass(frozen=True)
class RawInputs:
    """The columns of a request.

    Attributes:
      columns: the columns that the model reads. A request must contain each of them.
      ignored: names of the spec's columns that this model does not read. A request may contain them.
    """

    columns: tuple[RawColumn, ...]
    ignored: frozenset[str]

    @functools.cached_property
    def known(self) -> frozenset[str]:
        """The names that a request may contain."""
        return self.ignored.union(column.name for column in self.columns)

    @functools.cached_property
    def kinds(self) -> tuple[tuple[RawColumn, ...], ...]:
        """The columns by kind, see `by_kind`."""
        return by_kind(self.columns)

    @functools.cached_property
    def varying(self) -> tuple[RawColumn, ...]:
        """The columns with any number of values per example."""
        return tuple(column for column in self.columns if column.is_list or column.splits)

    @property
    def fixed(self) -> int:
        """The number of the other columns, each of which has one value per example."""
        return len(self.columns) - len(self.varying)

    @classmethod
    def of(cls, spec: FeatureSpec, names: Collection[str]) -> "RawInputs":
        """Returns the inputs of a model that reads the columns with these names."""
        columns = columns_of(spec)
        read = tuple(column for name, column in columns.items() if name in names)
        return cls(read, frozenset(columns.keys() - names))

    def by_name(self) -> dict[str, str]:
        """Returns a dict of column -> what its values are; "" for an ignored column."""
        weights = {c.name: f" with {c.separator!r}" if c.separator else "" for c in self.columns}
        return {**dict.fromkeys(sorted(self.ignored), ""), **{c.name: c.kind + weights[c.name] for c in self.columns}}


def inputs_of(tower: str, spec: FeatureSpec) -> dict[str, str]:
    """Returns `Record.inputs` of an exported tower."""
    found = saved_model_pb2.SavedModel.FromString((LocalPath(tower) / "saved_model.pb").read_bytes())
    names = {name for each in found.meta_graphs[0].signature_def.values() for name in each.inputs}
    return RawInputs.of(spec, names).by_name()
