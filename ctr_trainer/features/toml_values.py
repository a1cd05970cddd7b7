"""Values of a TOML file, checked for their types."""

import re

from ctr_trainer.messages.errors import UserError

_KIND = {
    str: "a string",
    float: "a number",
    int: "a whole number",
    list: "a list",
    dict: "a table",
    bool: "true or false",
}
_RANGE = re.compile(r"(.*?)(\d+)\.\.(.*?)(\d+)")


def typed(values, keys, where):
    """Checks a table's keys and the types of their values; -> the table, whole numbers made floats where wanted.

    Args:
      values: of the table.
      keys: the type of each key that it may have; `object` for any.
      where: it stands, for errors.

    Raises:
      UserError: it is no table, or has another key or type.
    """
    if not isinstance(values, dict):
        raise UserError(f"{where}: {values!r} is not a table")
    for key, value in values.items():
        if key not in keys:
            raise UserError(f"{where}: unknown key {key!r}; accepted are {', '.join(keys)}")
        if keys[key] is object:
            continue
        number = keys[key] is float and isinstance(value, int)
        if not (isinstance(value, keys[key]) or number) or (isinstance(value, bool) and keys[key] is not bool):
            raise UserError(f"{where}: {key!r} is {value!r}, which is not {_KIND[keys[key]]}")
    return {k: float(v) if keys[k] is float else v for k, v in values.items()}


def strings(values, where):
    """-> a list of strings as a tuple; raises UserError where it is none."""
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise UserError(f"{where}: {values!r} is not a list of strings")
    return tuple(values)


def numbers(values, where):
    """-> a list of numbers as a tuple of floats; raises UserError where it is none."""
    if not isinstance(values, list) or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        raise UserError(f"{where}: {values!r} is not a list of numbers")
    return tuple(float(v) for v in values)


def feature_names(item, where):
    """-> (name, column) pairs of one [[dense]] or [[sparse]] item."""
    if "columns" in item:
        if "name" in item or "column" in item:
            raise UserError(f"{where}: 'columns' excludes 'name' and 'column': each feature is named like its column")
        columns = [c for text in strings(item["columns"], f"{where}: 'columns'") for c in _expand(text, where)]
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
