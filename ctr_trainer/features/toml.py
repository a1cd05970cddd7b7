"""Reads feature specs from TOML: unknown keys are errors, and one entry can define many similar columns.

The accepted keys, except the options of [csv], which `columns.CsvFormat` lists:

    name = "criteo"
    ids = []                        # optional: columns kept for predictions
    weight = "w"                    # optional
    [label]                         # or several: [[label]]
    column = "label"                # optionally with one of: positive = ">50K" / threshold = 4.0
    name = "click"                  # default: the column
    weight = 1.0                    # weight of its loss if there are several labels
    [defaults]
    dim = 16                        # any key of a [[sparse]] feature except its names
    transform = "log1p"             # any key of a [[dense]] feature except its names
    [[dense]]
    columns = ["I1..I13"]           # one feature per column, with the column's name
    [[sparse]]
    name = "genres"                 # `column` and `slot` default to the name
    combiner = "mean"
    [[limits]]                      # optional, one per table: see embedding/table/table_config.py
    table = "dim16"                 # the table of the features with dim 16
    min_frequency = 3               # and any of: max_rows = 1000000 / eviction = "lfu" or "lru" / ttl_steps = 50000
    [csv]
    delimiter = ","                 # the `csv` format's options

The keys of a feature are the attributes of `columns.DenseFeature` and `columns.SparseFeature`.
"""

import os
import pathlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ctr_trainer.features.columns import CsvFormat, DenseFeature, Label, SparseFeature, TableLimits
from ctr_trainer.system.messages.errors import UserError

_KIND = {
    str: "a string",
    float: "a number",
    int: "a whole number",
    list: "a list",
    dict: "a table",
    bool: "true or false",
}
_RANGE = re.compile(r"(.*?)(\d+)\.\.(.*?)(\d+)")


def typed(values: Any, keys: Mapping[str, type], where: str) -> dict[str, Any]:
    """Checks the keys of a table and the types of their values.

    Args:
      values: the table, a dict.
      keys: dict of accepted key -> type of its value; `object` for any type.
      where: place of the table, for error messages.

    Returns:
      the table; whole numbers are converted to float if the type of the key is float.

    Raises:
      UserError: `values` is not a table, or has an unknown key or a value of another type.
    """
    if not isinstance(values, dict):
        raise UserError(f"{where}: {values!r} is not a table")
    for key, value in values.items():
        if key not in keys:
            raise UserError(f"{where}: unknown key {key!r}; accepted keys are {', '.join(keys)}")
        if keys[key] is object:
            continue
        number = keys[key] is float and isinstance(value, int)
        if not (isinstance(value, keys[key]) or number) or (isinstance(value, bool) and keys[key] is not bool):
            raise UserError(f"{where}: {key!r} is {value!r}, which is not {_KIND[keys[key]]}")
    return {k: float(v) if keys[k] is float else v for k, v in values.items()}


def strings(values: Any, where: str) -> tuple[str, ...]:
    """Returns the strings of a list as a tuple; raises UserError if `values` is not a list of strings."""
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise UserError(f"{where}: {values!r} is not a list of strings")
    return tuple(values)


def numbers(values: Any, where: str) -> tuple[float, ...]:
    """Returns the numbers of a list as a tuple of floats; raises UserError if `values` is not a list of numbers."""
    if not isinstance(values, list) or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        raise UserError(f"{where}: {values!r} is not a list of numbers")
    return tuple(float(v) for v in values)


def feature_names(item: Any, where: str) -> list[tuple[str, str]]:
    """Returns (name, column) pairs of one [[dense]] or [[sparse]] item."""
    if "columns" in item:
        if "name" in item or "column" in item:
            raise UserError(f"{where}: 'columns' excludes 'name' and 'column': each feature has the name of its column")
        columns = [c for text in strings(item["columns"], f"{where}: 'columns'") for c in _expand(text, where)]
        return [(c, c) for c in columns]
    if "name" not in item and "column" not in item:
        raise UserError(f"{where}: give 'name', 'column' or 'columns'")
    name = item.get("name", item.get("column"))
    return [(name, item.get("column", name))]


def _expand(text: str, where: str) -> list[str]:
    """Expands a range of columns such as `I1..I13` to its names; any other text is the name of one column."""
    match = _RANGE.fullmatch(text)
    if not match:
        return [text]
    prefix, first, prefix_again, last = match.groups()
    if prefix != prefix_again or int(first) > int(last):
        raise UserError(f"{where}: {text!r} is not a range of columns such as 'I1..I13'")
    return [f"{prefix}{i}" for i in range(int(first), int(last) + 1)]


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_DENSE = {"transform": str, "default": float, "clip": list, "pieces": int}
_SPARSE = {
    "dim": int,
    "slot": str,
    "combiner": str,
    "separator": str,
    "brackets": bool,
    "max_length": int,
    "keep": str,
    "weight_separator": str,
    "buckets": list,
    "quantiles": int,
    "missing": str,
    "derive": str,
}
_NAMES = {"name": str, "column": str, "columns": list}
_LABEL = {"column": str, "positive": str, "threshold": float, "name": str, "weight": float}
_CSV = {
    "delimiter": str,
    "header": bool,
    "columns": list,
    "null_values": list,
    "strip": bool,
    "label_suffix": str,
    "quote": str,
    "lines_per_row": int,
}
_LIMITS = {"table": str, "min_frequency": int, "max_rows": int, "eviction": str, "ttl_steps": int}
_TOP = {
    "name": str,
    "label": object,
    "defaults": dict,
    "dense": list,
    "sparse": list,
    "ids": list,
    "weight": str,
    "csv": dict,
    "limits": list,
}


_Made = TypeVar("_Made")


def load(path: str | os.PathLike[str], kind: Callable[..., _Made]) -> _Made:
    """Reads a spec from a TOML file; see `parse`."""
    path = pathlib.Path(path)
    try:
        with path.open("rb") as file:
            return parse(tomllib.load(file), str(path), kind)
    except OSError as error:
        raise UserError(f"feature spec {path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"feature spec {path}: not TOML: {error}") from error


def parse(values: Any, source: str, kind: Callable[..., _Made]) -> _Made:
    """Makes a spec from the values of a TOML file, or from `FeatureSpec.to_dict()`.

    Args:
      values: a dict of dicts, lists and values.
      source: name of the values' origin, for error messages.
      kind: the class FeatureSpec, which is passed because its module imports this one.

    Returns:
      a `kind`.
    """
    top = typed(values, _TOP, source)
    for key in ("name", "label"):
        if key not in top:
            raise UserError(f"{source}: {key!r} is missing")
    defaults = typed(top.get("defaults", {}), {**_DENSE, **_SPARSE}, f"{source}: [defaults]")
    label, *other_labels = _labels(top["label"], source)
    try:
        return kind(
            name=top["name"],
            label=label,
            dense=_features(top, "dense", _DENSE, defaults, source),
            sparse=_features(top, "sparse", _SPARSE, defaults, source),
            ids=strings(top.get("ids", []), f"{source}: 'ids'"),
            weight=top.get("weight"),
            csv=_csv(top.get("csv", {}), f"{source}: [csv]"),
            limits=tuple(_limits(item, f"{source}: [[limits]]") for item in top.get("limits", [])),
            other_labels=tuple(other_labels),
        )
    except UserError as error:
        raise error if str(error).startswith(source) else UserError(f"{source}: {error}") from error


def _labels(values: Any, source: str) -> list[Label]:
    """Returns the `Label` of [label], or one for each [[label]]."""
    several = isinstance(values, list)
    labels: list[Label] = []
    for number, item in enumerate(values if several else [values], 1):
        where = f"{source}: [[label]] {number}" if several else f"{source}: [label]"
        item = typed(item, _LABEL, where)
        if "column" not in item:
            raise UserError(f"{where}: 'column' is missing")
        labels.append(_made(Label, item, where))
    if not labels:
        raise UserError(f"{source}: 'label' is an empty list; give one [label] or several [[label]]")
    return labels


def _features(
    top: Mapping[str, Any], kind: str, keys: Mapping[str, type], defaults: Mapping[str, Any], source: str
) -> tuple[Any, ...]:
    make = {"dense": _dense, "sparse": _sparse}[kind]
    defaults = {k: v for k, v in defaults.items() if k in keys}
    features = []
    for number, item in enumerate(top.get(kind, []), 1):
        called = (item.get("name") or item.get("column") or item.get("columns")) if isinstance(item, dict) else None
        where = f"{source}: [[{kind}]] {number} ({called})"
        item = typed(item, {**_NAMES, **keys}, where)
        options = {**defaults, **{k: v for k, v in item.items() if k not in _NAMES}}
        features += [make(name, column, dict(options), where) for name, column in feature_names(item, where)]
    return tuple(features)


def _dense(name: str, column: str, options: dict[str, Any], where: str) -> DenseFeature:
    if "clip" in options:
        options["clip"] = numbers(options["clip"], f"{where}: 'clip'")
    return _made(DenseFeature, {"name": name, "column": column, **options}, where)


def _sparse(name: str, column: str, options: dict[str, Any], where: str) -> SparseFeature:
    if "dim" not in options:
        raise UserError(f"{where}: 'dim' is missing; give it here or under [defaults]")
    if "buckets" in options:
        options["buckets"] = numbers(options["buckets"], f"{where}: 'buckets'")
    return _made(SparseFeature, {"name": name, "column": column, "slot": name, **options}, where)


def _limits(item: Any, where: str) -> TableLimits:
    limits = typed(item, _LIMITS, where)
    if "table" not in limits:
        raise UserError(f"{where}: 'table' is missing; expected for example table = \"dim16\"")
    return _made(TableLimits, limits, where)


def _csv(values: Any, where: str) -> CsvFormat:
    csv = typed(values, _CSV, where)
    for key in ("columns", "null_values"):
        if key in csv:
            csv[key] = strings(csv[key], f"{where}: {key!r}")
    return _made(CsvFormat, csv, where)


def _made(kind: Callable[..., _Made], values: Any, where: str) -> _Made:
    """Returns a `kind` made from the values; prefixes its error messages with `where`, the place of the values."""
    try:
        return kind(**values)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
