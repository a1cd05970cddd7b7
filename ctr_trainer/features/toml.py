"""The feature spec's TOML form: strict, with a compact form for many alike columns.

All of it, but for the options of [csv] (see `spec.CsvFormat`):

    name = "criteo"
    ids = []                        # optional: columns kept for predictions
    weight = "w"                    # optional
    [label]
    column = "label"                # and one of: positive = ">50K" / threshold = 4.0
    [defaults]
    dim = 16                        # any key of a [[sparse]] feature but its names
    transform = "log1p"             # any key of a [[dense]] feature but its names
    [[dense]]
    columns = ["I1..I13"]           # one feature a column, each named like its column
    [[sparse]]
    name = "genres"                 # `column` and `slot` are the name unless given
    combiner = "mean"
    [[limits]]                      # optional, one a table: which keys have rows, see embedding/config.py
    table = "dim16"                 # of the features of dim 16
    min_frequency = 3               # and any of: max_rows = 1000000 / eviction = "lfu" or "lru" / ttl_steps = 50000
    [csv]
    delimiter = ","                 # the `csv` format's options
"""

import pathlib
import re
import sys

from ctr_trainer.errors import UserError
from ctr_trainer.features.spec import (
    COMBINERS,
    TRANSFORMS,
    CsvFormat,
    DenseFeature,
    FeatureSpec,
    Label,
    SparseFeature,
    TableLimits,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_DENSE = {"transform": str, "default": float}
_SPARSE = {"dim": int, "slot": str, "combiner": str, "separator": str, "max_length": int}
_NAMES = {"name": str, "column": str, "columns": list}
_LABEL = {"column": str, "positive": str, "threshold": float}
_CSV = {"delimiter": str, "header": bool, "columns": list, "null_values": list, "strip": bool, "label_suffix": str}
_LIMITS = {"table": str, "min_frequency": int, "max_rows": int, "eviction": str, "ttl_steps": int}
_EVICTIONS = ("lru", "lfu")
_MOST_FREQUENCY = 255
_TOP = {
    "name": str,
    "label": dict,
    "defaults": dict,
    "dense": list,
    "sparse": list,
    "ids": list,
    "weight": str,
    "csv": dict,
    "limits": list,
}
_KIND = {
    str: "a string",
    float: "a number",
    int: "a whole number",
    list: "a list",
    dict: "a table",
    bool: "true or false",
}
_RANGE = re.compile(r"(.*?)(\d+)\.\.(.*?)(\d+)")


def load(path):
    """Reads the spec at `path`."""
    path = pathlib.Path(path)
    try:
        with path.open("rb") as file:
            return parse(tomllib.load(file), str(path))
    except OSError as error:
        raise UserError(f"feature spec {path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"feature spec {path}: not TOML: {error}") from error


def parse(values, source):
    """-> FeatureSpec of a TOML file's values, or of `FeatureSpec.to_dict()`."""
    top = _typed(values, _TOP, source)
    for key in ("name", "label"):
        if key not in top:
            raise UserError(f"{source}: {key!r} is missing")
    defaults = _typed(top.get("defaults", {}), {**_DENSE, "default": float, **_SPARSE}, f"{source}: [defaults]")
    label = _typed(top["label"], _LABEL, f"{source}: [label]")
    if "column" not in label:
        raise UserError(f"{source}: [label]: 'column' is missing")
    try:
        return FeatureSpec(
            name=top["name"],
            label=Label(**label),
            dense=_features(top, "dense", _DENSE, defaults, source),
            sparse=_features(top, "sparse", _SPARSE, defaults, source),
            ids=_strings(top.get("ids", []), f"{source}: 'ids'"),
            weight=top.get("weight"),
            csv=_csv(top.get("csv", {}), f"{source}: [csv]"),
            limits=tuple(_limits(item, f"{source}: [[limits]]") for item in top.get("limits", [])),
        )
    except UserError as error:
        raise error if str(error).startswith(source) else UserError(f"{source}: {error}") from error


def _features(top, kind, keys, defaults, source):
    make = {"dense": _dense, "sparse": _sparse}[kind]
    defaults = {k: v for k, v in defaults.items() if k in keys}
    features = []
    for number, item in enumerate(top.get(kind, []), 1):
        called = (item.get("name") or item.get("column") or item.get("columns")) if isinstance(item, dict) else None
        where = f"{source}: [[{kind}]] {number} ({called})"
        item = _typed(item, {**_NAMES, **keys}, where)
        options = {**defaults, **{k: v for k, v in item.items() if k not in _NAMES}}
        features += [make(name, column, options, where) for name, column in _names(item, where)]
    return tuple(features)


def _dense(name, column, options, where):
    if options.get("transform", "none") not in TRANSFORMS:
        raise UserError(f"{where}: transform {options['transform']!r} is not one of {', '.join(TRANSFORMS)}")
    return DenseFeature(name, column, **options)


def _sparse(name, column, options, where):
    if "dim" not in options:
        raise UserError(f"{where}: 'dim' is missing; give it here or under [defaults]")
    if options["dim"] < 1:
        raise UserError(f"{where}: dim {options['dim']} is not at least 1")
    if options.get("max_length", 0) < 0:
        raise UserError(f"{where}: max_length {options['max_length']} is negative; 0 keeps all values")
    if options.get("combiner") not in (None, *COMBINERS):
        accepted = f"{', '.join(COMBINERS)}; leave it out for a single-valued feature"
        raise UserError(f"{where}: combiner {options['combiner']!r} is not one of {accepted}")
    if not options.get("separator", "|"):
        raise UserError(f"{where}: 'separator' is empty")
    return SparseFeature(name, column, **{"slot": name, **options})


def _names(item, where):
    """-> (name, column) pairs of one [[dense]] or [[sparse]] item."""
    if "columns" in item:
        if "name" in item or "column" in item:
            raise UserError(f"{where}: 'columns' excludes 'name' and 'column': each feature is named like its column")
        columns = [c for text in _strings(item["columns"], f"{where}: 'columns'") for c in _expand(text, where)]
        return [(c, c) for c in columns]
    if "name" not in item and "column" not in item:
        raise UserError(f"{where}: give 'name', 'column' or 'columns'")
    name = item.get("name", item.get("column"))
    return [(name, item.get("column", name))]


def _expand(text, where):
    """`"I1..I13"` -> I1, I2, ... I13; any other text is a column's name."""
    match = _RANGE.fullmatch(text)
    if not match:
        return [text]
    prefix, first, prefix_again, last = match.groups()
    if prefix != prefix_again or int(first) > int(last):
        raise UserError(f"{where}: {text!r} is not a range of columns, as 'I1..I13'")
    return [f"{prefix}{i}" for i in range(int(first), int(last) + 1)]


def _limits(item, where):
    limits = _typed(item, _LIMITS, where)
    if "table" not in limits:
        raise UserError(f"{where}: 'table' is missing, as table = \"dim16\" for the features of dim 16")
    for key in ("min_frequency", "max_rows", "ttl_steps"):
        if limits.get(key, 0) < 0:
            raise UserError(f"{where}: {key} {limits[key]} is negative; 0 sets no limit")
    if limits.get("min_frequency", 0) > _MOST_FREQUENCY:
        raise UserError(f"{where}: min_frequency {limits['min_frequency']} is above {_MOST_FREQUENCY}")
    if limits.get("eviction", "lru") not in _EVICTIONS:
        raise UserError(f"{where}: eviction {limits['eviction']!r} is not one of {', '.join(_EVICTIONS)}")
    return TableLimits(**limits)


def _csv(values, where):
    csv = _typed(values, _CSV, where)
    for key in ("columns", "null_values"):
        if key in csv:
            csv[key] = _strings(csv[key], f"{where}: {key!r}")
    if len(csv.get("delimiter", ",")) != 1:
        raise UserError(f"{where}: delimiter {csv['delimiter']!r} is not one character")
    if not csv.get("header", True) and not csv.get("columns"):
        raise UserError(f"{where}: without a header, 'columns' must name the columns in order")
    return CsvFormat(**csv)


def _strings(values, where):
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise UserError(f"{where}: {values!r} is not a list of strings")
    return tuple(values)


def _typed(values, keys, where):
    """Checks a table's keys and the types of their values; -> the table, whole numbers made floats where wanted."""
    if not isinstance(values, dict):
        raise UserError(f"{where}: {values!r} is not a table")
    for key, value in values.items():
        if key not in keys:
            raise UserError(f"{where}: unknown key {key!r}; accepted are {', '.join(keys)}")
        number = keys[key] is float and isinstance(value, int)
        if not (isinstance(value, keys[key]) or number) or (isinstance(value, bool) and keys[key] is not bool):
            raise UserError(f"{where}: {key!r} is {value!r}, which is not {_KIND[keys[key]]}")
    return {k: float(v) if keys[k] is float else v for k, v in values.items()}
