"""The feature spec: which columns of a data set a model reads, and how each column is converted to numbers."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ctr_trainer.features import toml
from ctr_trainer.features.columns import CrossFeature, CsvFormat, DenseFeature, Label, SparseFeature, TableLimits
from ctr_trainer.features.lookup import LookupColumns, Pretrained
from ctr_trainer.system.files.paths import Path
from ctr_trainer.system.messages.errors import UserError, listed

# Prefixes of a data set's columns that are not features (see data/blocks.py).
RESERVED_PREFIXES = ("id:", "label:", "time:", "weights:")


@dataclasses.dataclass(frozen=True)
class TableFeatures:
    """The sparse features whose embeddings live in one table, in the spec's order.

    Attributes:
      single: features with one value per example, bucketised features among them.
      bags: features whose values are pooled to one vector per example.
      sequences: features with several vectors per example.
    """

    name: str
    dim: int
    single: tuple[SparseFeature, ...]
    bags: tuple[SparseFeature, ...]
    sequences: tuple[SparseFeature, ...] = ()

    @property
    def pooled(self) -> tuple[SparseFeature, ...]:
        """The features with one vector per example, in the order of the table's tensor."""
        return self.single + self.bags


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """The description of a data set's columns that conversion, training and exported graphs use.

    Attributes:
      name: name of the spec, for messages.
      label: the first, or only, label.
      ids: columns that are stored next to the features, for predictions and grouped metrics; not used for training.
      weight: column of the examples' weights; None for weight 1.
      cross: features that combine single-valued `sparse` features. They are computed when a batch is made, so data sets
        have no columns for them.
      lookup: columns that features read like columns of the source data, and whose values are in files.
      pretrained: vectors in files with which rows begin.
      limits: the `TableLimits` of the tables that have limits.
      other_labels: the labels after the first; see `labels`.
      labelled: whether the data have labels. False is for data to predict on, see `without_labels`. A data set stores
        this attribute; the TOML file and `to_dict` do not.

    Raises:
      UserError: two features or two labels have the same name, features with the same slot have different dims, or
        there is no feature.
    """

    name: str
    label: Label
    dense: tuple[DenseFeature, ...]
    sparse: tuple[SparseFeature, ...]
    ids: tuple[str, ...] = ()
    weight: str | None = None
    csv: CsvFormat = CsvFormat()
    cross: tuple[CrossFeature, ...] = ()
    lookup: tuple[LookupColumns, ...] = ()
    pretrained: tuple[Pretrained, ...] = ()
    limits: tuple[TableLimits, ...] = ()
    other_labels: tuple[Label, ...] = ()
    labelled: bool = True

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "FeatureSpec":
        """Reads a spec from a TOML file; see docs/features.md for the format.

        Args:
          path: path of the file.

        Returns:
          the `FeatureSpec`.

        Raises:
          UserError: the file does not exist, is not TOML, or has an unknown key or a wrong value. The message names the
            file, the feature and the key.
        """
        path = pathlib.Path(path)
        return cls.from_dict(toml.read(path), str(path), path.parent)

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], source: str = "feature spec", directory: str | os.PathLike[str] = ""
    ) -> "FeatureSpec":
        """Makes a spec from the result of `to_dict`.

        Args:
          values: dict of the spec's values.
          source: origin of the values, for error messages.
          directory: the directory to which the paths of lookup files are relative; by default the current one.

        Returns:
          the `FeatureSpec`.

        Raises:
          UserError: a key is unknown, a value is wrong, or a lookup file cannot be read.
        """
        arguments = toml.arguments(values, source)
        try:
            for files in ("lookup", "pretrained"):
                arguments[files] = tuple(each.found(directory) for each in arguments[files])
            return cls(**arguments)
        except UserError as error:
            raise error if str(error).startswith(source) else UserError(f"{source}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Converts the spec to a dict.

        Returns:
          dict, serializable as JSON, of all settings that are not None.
        """
        values = dataclasses.asdict(self, dict_factory=_without_none)
        others, _ = values.pop("other_labels"), values.pop("labelled")
        values["cross"] = [{key: each[key] for key in toml.CROSS} for each in values["cross"]]
        return values | {"label": [values["label"], *others]} if others else values

    def with_dim(self, dim: int) -> "FeatureSpec":
        """Sets the dim of every sparse feature.

        Args:
          dim: width of the embeddings.

        Returns:
          the new `FeatureSpec`, or this one if all its dims are already `dim`.

        Raises:
          UserError: several tables have [[limits]], but would become one table.
        """
        if all(feature.dim == dim for feature in self.embedded):
            return self
        if len(self.limits) > 1:
            raise UserError(f"feature spec {self.name!r}: its tables have [[limits]] of their own, so no dim for all")
        limits = tuple(dataclasses.replace(each, table=f"dim{dim}") for each in self.limits)
        sparse = tuple(dataclasses.replace(f, dim=dim) for f in self.sparse)
        cross = tuple(dataclasses.replace(f, dim=dim) for f in self.cross)
        return dataclasses.replace(self, sparse=sparse, cross=cross, limits=limits)

    def of_columns(self, columns: Collection[str]) -> "FeatureSpec":
        """Makes the spec with the features of some columns only, without limits.

        Args:
          columns: columns of the source data.

        Returns:
          the `FeatureSpec`, with the lookups whose key is there, and the crosses all of whose columns are there.
        """
        lookup = tuple(each for each in self.lookup if each.key in columns)
        columns = {*columns, *(name for each in lookup for name in each.columns)}
        cross = tuple(f for f in self.cross if all(part.column in columns for part in self.crossed(f)))
        dense = tuple(f for f in self.dense if f.column in columns)
        none: dict[str, Any] = {"pretrained": (), "limits": ()}
        sparse = tuple(f for f in self.sparse if f.column in columns)
        return dataclasses.replace(self, dense=dense, sparse=sparse, cross=cross, lookup=lookup, **none)

    def crossed(self, feature: CrossFeature) -> list[SparseFeature]:
        """Finds the features that a cross combines.

        Args:
          feature: one of `cross`.

        Returns:
          the features, in the order of `feature.columns`.

        Raises:
          UserError: a column has no single-valued sparse feature, or several.
        """
        single, found = [f for f in self.sparse if f.combiner is None], []
        for name in feature.columns:
            parts = [f for f in single if f.name == name] or [f for f in single if f.column == name]
            if len(parts) != 1:
                raise UserError(
                    f"feature spec {self.name!r}: [[cross]] {feature.name!r}: {name!r} is the column of {len(parts)} "
                    "single-valued [[sparse]] features; add one (with 'buckets' or 'quantiles' for a number), or give "
                    f"the name of one: {listed(f.name for f in parts or single)}"
                )
            found += parts
        return found

    @functools.cached_property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """The columns of the source data that each sparse feature or cross is computed from, by the feature's name."""
        own = {f.name: (self.source(f.column),) for f in self.sparse}
        return own | {f.name: tuple(self.source(part.column) for part in self.crossed(f)) for f in self.cross}

    @functools.cached_property
    def looked_up(self) -> dict[str, LookupColumns]:
        """The lookup of each column that a `LookupColumns` makes, by the column's name."""
        return {name: each for each in self.lookup for name in each.columns}

    @functools.cached_property
    def lookups_read(self) -> dict[LookupColumns, bool]:
        """The lookups whose columns features read, and for each whether all of these features read numbers."""
        read = {f.column for f in self.features}
        texts = {f.column for f in self.sparse if not f.is_bucketised}
        return {each: texts.isdisjoint(each.columns) for each in self.lookup if not read.isdisjoint(each.columns)}

    def source(self, column: str) -> str:
        """Returns the column of the source data that a feature's column is, or by whose values it is looked up."""
        return self.looked_up[column].key if column in self.looked_up else column

    def in_directory(self, directory: Path) -> "FeatureSpec":
        """Returns the spec with its files in a directory of data, of a model or of an export."""
        lookup = tuple(each.in_directory(directory) for each in self.lookup)
        pretrained = tuple(each.in_directory(directory) for each in self.pretrained)
        return dataclasses.replace(self, lookup=lookup, pretrained=pretrained)

    @property
    def files(self) -> tuple[LookupColumns, ...]:
        return (*self.lookup, *self.pretrained)

    @property
    def features(self) -> tuple[DenseFeature | SparseFeature, ...]:
        """The dense and then the sparse features, without crosses."""
        return (*self.dense, *self.sparse)

    @property
    def embedded(self) -> tuple[SparseFeature, ...]:
        """The features that have rows: the sparse features and then the crosses."""
        return (*self.sparse, *self.cross)

    def without_labels(self) -> "FeatureSpec":
        """Makes the spec for data to predict on. Its labels and weights are not read, even if the data have them.

        Returns:
          the `FeatureSpec`, with `labelled` False and no `weight`.
        """
        return dataclasses.replace(self, labelled=False, weight=None)

    def limits_of(self, table: str) -> TableLimits:
        """Finds the limits of a table.

        Args:
          table: name of the table, such as `dim16`.

        Returns:
          the table's `TableLimits`; without limits if the spec sets none for the table.
        """
        return next((each for each in self.limits if each.table == table), TableLimits(table))

    @property
    def labels(self) -> tuple[Label, ...]:
        """All labels, in the spec's order."""
        return (self.label, *self.other_labels)

    @functools.cached_property
    def tables(self) -> tuple[TableFeatures, ...]:
        """The sparse features and then the crosses, grouped by dim. Tables and features are in the spec's order."""
        dims = dict.fromkeys(f.dim for f in self.embedded)
        return tuple(
            TableFeatures(
                f"dim{dim}",
                dim,
                tuple(f for f in self.embedded if f.dim == dim and f.combiner is None),
                tuple(f for f in self.sparse if f.dim == dim and f.is_bag),
                tuple(f for f in self.sparse if f.dim == dim and f.is_sequence),
            )
            for dim in dims
        )

    @property
    def bags(self) -> tuple[SparseFeature, ...]:
        """The features that are pooled from several values, in the spec's order."""
        return tuple(f for f in self.sparse if f.is_bag)

    @property
    def sequences(self) -> tuple[SparseFeature, ...]:
        """The features that are sequences of values, in the spec's order."""
        return tuple(f for f in self.sparse if f.is_sequence)

    @property
    def bucketised(self) -> tuple[SparseFeature, ...]:
        """The sparse features whose values are buckets of numbers, in the spec's order."""
        return tuple(f for f in self.sparse if f.is_bucketised)


def _without_none(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in items if v is not None}


def _check(spec: "FeatureSpec") -> None:
    where = f"feature spec {spec.name!r}"
    names = ["label", "weight", *(f.name for f in spec.dense), *(f.name for f in spec.embedded)]
    for taken, what in (
        (names, "a feature's name, and 'label' and 'weight' are taken"),
        (list(spec.ids), "'ids'"),
        ([label.name for label in spec.labels], "a label's name"),
    ):
        for name in taken:
            if taken.count(name) > 1:
                raise UserError(f"{where}: {name!r} is there twice ({what}); give one of them another name")
    for name in names:
        if name.startswith(RESERVED_PREFIXES):
            raise UserError(f"{where}: {name!r}: no feature's name starts with {', '.join(RESERVED_PREFIXES)}")
    if not spec.dense and not spec.sparse:
        raise UserError(f"{where}: it has no feature; add a [[dense]] or a [[sparse]] one")
    _check_limits(spec, where)
    for cross in spec.cross:
        spec.crossed(cross)
    _check_lookups(spec, where)
    slots: dict[str, SparseFeature] = {}
    for f in spec.embedded:
        first = slots.setdefault(f.slot, f)
        if first.dim != f.dim:
            raise UserError(
                f"{where}: {first.name!r} (dim {first.dim}) and {f.name!r} (dim {f.dim}) share slot {f.slot!r}, "
                "so they share rows and must have one dim"
            )


def _check_lookups(spec: "FeatureSpec", where: str) -> None:
    made = [name for each in spec.lookup for name in each.columns]
    own = {*spec.ids, spec.weight, *(label.column for label in spec.labels), *(each.key for each in spec.lookup)}
    for name in made:
        if made.count(name) > 1 or name in own:
            raise UserError(
                f"{where}: {name!r} is a column of [[lookup]], which only features read: give it a name that no key, "
                "label, id, weight or other lookup has"
            )
    lists = {f.column for f in spec.sparse if f.combiner}
    for each in spec.lookup:
        if each.key in lists:
            raise UserError(
                f"{where}: [[lookup]] {each.name!r}: key {each.key!r} is a list; give a single-valued column"
            )
    slots = [(f.name, f.slot) for pretrained in spec.pretrained for f in spec.sparse if f.name == pretrained.name]
    if len({slot for _, slot in slots}) < len(spec.pretrained):
        raise UserError(
            f"{where}: [[pretrained]] {listed(x.name for x in spec.pretrained)}: expected the names of [[sparse]] "
            "features, each with another slot"
        )
    for each, is_number in spec.lookups_read.items():
        if each.length and not is_number:
            raise UserError(f"{where}: [[lookup]] {each.name!r} has a length, so its columns are numbers: read them so")


def _check_limits(spec: "FeatureSpec", where: str) -> None:
    tables = [f"dim{dim}" for dim in dict.fromkeys(f.dim for f in spec.embedded)]
    limited = [each.table for each in spec.limits]
    for table in limited:
        if table not in tables or limited.count(table) > 1:
            raise UserError(
                f"{where}: [[limits]]: table {table!r} is there {limited.count(table)} times; each of "
                f"{', '.join(tables) or 'no table'} may be there once"
            )
