"""Checks the types of a TOML file's values."""

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
    """Checks the keys of a table and the types of their values.

    Args:
      values: the table, a dict.
      keys: dict of accepted key -> type of its value; `object` for any type.
      where: place of the table, for error messages.

    Returns:
      the table, in which a whole number is a float if its key's type is float.

    Raises:
      UserError: `values` is no table, or has an unknown key or a value of another type.
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
    """-> the strings of a list as a tuple; raises UserError if `values` is no list of strings."""
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise UserError(f"{where}: {values!r} is not a list of strings")
    return tuple(values)


def numbers(values, where):
    """-> the numbers of a list as a tuple of floats; raises UserError if `values` is no list of numbers."""
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
