"""Reads feature specs from TOML. Unknown keys are errors, and one entry can define many similar features.

docs/features.md lists the accepted keys. Those of a section are the attributes of its class in `columns` or `lookup`.
"""

import dataclasses
import pathlib
import re
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from ctr_trainer.features.columns import CrossFeature, CsvFormat, DenseFeature, Label, SparseFeature, TableLimits
from ctr_trainer.features.lookup import LookupColumns, Pretrained
from ctr_trainer.system.messages.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KIND = {
    str: "a string",
    float: "a number",
    int: "a whole number",
    list: "a list",
    dict: "a table",
    bool: "true or false",
}
_RANGE = re.compile(r"(.*?)(\d+)\.\.(.*?)(\d+)")
_NAMES = {"name": str, "column": str, "columns": list}
CROSS = {"name": str, "columns": list, "dim": int, "slot": str, "max_rows": int}
_TOP = {
    "name": str,
    "label": object,
    "defaults": dict,
    "dense": list,
    "sparse": list,
    "cross": list,
    "lookup": list,
    "pretrained": list,
    "ids": list,
    "weight": str,
    "csv": dict,
    "limits": list,
}
_IF_MISSING = {
    SparseFeature: "; give it here or under [defaults]",
    CrossFeature: "; give it here or under [defaults]",
    TableLimits: '; expected for example table = "dim16"',
}
_Made = TypeVar("_Made")


def typed(values: Any, keys: Mapping[str, type], where: str) -> dict[str, Any]:
    """Checks the keys and values of a table, and returns it as a dict with floats for all keys of type float.

    Args:
      keys: dict of accepted key -> type of its value; `object` for any type.
      where: location of the table, for error messages.

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


def read(path: pathlib.Path) -> dict[str, Any]:
    """Reads a TOML file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UserError(f"feature spec {path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"feature spec {path}: not TOML: {error}") from error


def arguments(values: Any, source: str) -> dict[str, Any]:
    """Converts the values of a TOML file, or of `FeatureSpec.to_dict()`, to the arguments of `FeatureSpec`.

    `source` is the origin of the values, for error messages.
    """
    top = typed(values, _TOP, source)
    for key in ("name", "label"):
        if key not in top:
            raise UserError(f"{source}: {key!r} is missing")
    accepted = {**_keys(DenseFeature), **_keys(SparseFeature)}
    accepted = {key: value for key, value in accepted.items() if key not in _NAMES}
    defaults = typed(top.get("defaults", {}), accepted, f"{source}: [defaults]")
    label, *other_labels = _labels(top["label"], source)
    return dict(
        name=top["name"],
        label=label,
        dense=_features(top, "dense", DenseFeature, defaults, source),
        sparse=_features(top, "sparse", SparseFeature, defaults, source),
        cross=_crosses(top, defaults, source),
        lookup=tuple(_made(LookupColumns, item, f"{source}: [[lookup]]") for item in top.get("lookup", [])),
        pretrained=tuple(_made(Pretrained, item, f"{source}: [[pretrained]]") for item in top.get("pretrained", [])),
        ids=_tuple(top.get("ids", []), str, f"{source}: 'ids'"),
        weight=top.get("weight"),
        csv=_made(CsvFormat, top.get("csv", {}), f"{source}: [csv]"),
        limits=tuple(_made(TableLimits, item, f"{source}: [[limits]]") for item in top.get("limits", [])),
        other_labels=tuple(other_labels),
    )


def _labels(values: Any, source: str) -> list[Label]:
    """Returns the `Label` of [label], or a `Label` for each [[label]]."""
    if not isinstance(values, list):
        return [_made(Label, values, f"{source}: [label]")]
    if not values:
        raise UserError(f"{source}: 'label' is an empty list; give one [label] or several [[label]]")
    return [_made(Label, item, f"{source}: [[label]] {number}") for number, item in enumerate(values, 1)]


def _features(
    top: Mapping[str, Any], section: str, kind: type[_Made], defaults: Mapping[str, Any], source: str
) -> tuple[_Made, ...]:
    keys = _keys(kind)
    features = []
    for number, item in enumerate(top.get(section, []), 1):
        called = (item.get("name") or item.get("column") or item.get("columns")) if isinstance(item, dict) else None
        where = f"{source}: [[{section}]] {number} ({called})"
        item = typed(item, _NAMES | keys, where)
        for name, column in _feature_names(item, where):
            names = {"name": name, "column": column} | ({"slot": name} if "slot" in keys else {})
            options = {k: v for k, v in {**defaults, **item}.items() if k in keys and k not in _NAMES}
            features.append(_made(kind, names | options, where))
    return tuple(features)


def _crosses(top: Mapping[str, Any], defaults: Mapping[str, Any], source: str) -> tuple[CrossFeature, ...]:
    crosses = []
    for number, item in enumerate(top.get("cross", []), 1):
        where = f"{source}: [[cross]] {number}"
        item = typed(item, CROSS, where)
        columns = _tuple(item.get("columns", []), str, f"{where}: 'columns'")
        name = item.get("name", "_x_".join(columns))
        dim = {"dim": defaults["dim"]} if "dim" in defaults else {}
        values = {**dim, "slot": name, **item, "name": name, "column": "", "columns": [*columns]}
        crosses.append(_made(CrossFeature, values, f"{where} ({name})"))
    return tuple(crosses)


def _feature_names(item: Any, where: str) -> list[tuple[str, str]]:
    """Returns (name, column) pairs of one [[dense]] or [[sparse]] item."""
    if "columns" in item:
        if "name" in item or "column" in item:
            raise UserError(f"{where}: 'columns' excludes 'name' and 'column': each feature has the name of its column")
        columns = [c for text in _tuple(item["columns"], str, f"{where}: 'columns'") for c in _expand(text, where)]
        return [(c, c) for c in columns]
    if "name" not in item and "column" not in item:
        raise UserError(f"{where}: give 'name', 'column' or 'columns'")
    name = item.get("name", item.get("column"))
    return [(name, item.get("column", name))]


def _expand(text: str, where: str) -> list[str]:
    """Expands a range of columns, such as `I1..I13`, to their names. Any other text is the name of one column."""
    match = _RANGE.fullmatch(text)
    if not match:
        return [text]
    prefix, first, prefix_again, last = match.groups()
    if prefix != prefix_again or int(first) > int(last):
        raise UserError(f"{where}: {text!r} is not a range of columns such as 'I1..I13'")
    return [f"{prefix}{i}" for i in range(int(first), int(last) + 1)]


def _made(kind: type[_Made], values: Any, where: str) -> _Made:
    """Makes a dataclass of type `kind` from a table with its attributes. Error messages begin with `where`."""
    keys = _keys(kind)
    values = typed(values, keys, where)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in values and keys[field.name] is list:
            element = typing.get_args(_required(field.type))[0]
            values[field.name] = _tuple(values[field.name], element, f"{where}: {field.name!r}")
        elif field.name not in values and field.default is dataclasses.MISSING:
            raise UserError(f"{where}: {field.name!r} is missing{_IF_MISSING.get(kind, '')}")
    try:
        return kind(**values)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _keys(kind: type) -> dict[str, type]:
    """Returns a dict of key -> type of the value for a table. Its keys are the attributes of the dataclass `kind`."""
    required = {field.name: _required(field.type) for field in dataclasses.fields(kind)}
    return {name: list if typing.get_origin(of) is tuple else of for name, of in required.items()}


def _required(attribute: Any) -> Any:
    """Returns the type of an attribute; for an optional type, the type without `None`."""
    return typing.get_args(attribute)[0] if isinstance(attribute, types.UnionType) else attribute


def _tuple(values: Any, element: type, where: str) -> tuple[Any, ...]:
    """Converts a list of strings (of numbers, if `element` is float) to a tuple. Raises UserError for other values."""
    what, accepted = ("numbers", (int, float)) if element is float else ("strings", (str,))
    if not isinstance(values, list) or not all(isinstance(v, accepted) and not isinstance(v, bool) for v in values):
        raise UserError(f"{where}: {values!r} is not a list of {what}")
    return tuple(element(v) for v in values)
