"""A draft of a feature spec: TOML with a comment on each part."""

import dataclasses
import json
from collections.abc import Mapping

from ctr_trainer.features.columns import CsvFormat
from ctr_trainer.features.spec import RESERVED_PREFIXES

Option = str | bool | int | float | tuple[str, ...]
_TAKEN = ("label", "weight")
_DIM = 16


@dataclasses.dataclass
class Draft:
    """The TOML lines of a spec, by section.

    Attributes:
      columns: names of all columns of the source. A second feature of a column gets a name that is not among them.
    """

    columns: tuple[str, ...] = ()
    label: list[str] = dataclasses.field(default_factory=list)
    ids: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    dense: list[list[str]] = dataclasses.field(default_factory=list)
    sparse: list[list[str]] = dataclasses.field(default_factory=list)
    left_out: list[str] = dataclasses.field(default_factory=list)

    @property
    def has_features(self) -> bool:
        return bool(self.dense or self.sparse)

    def set_label(self, column: str, why: str, **options: Option) -> None:
        """Sets the label and its options."""
        self.label = [f"# {_plain(why)}", *_lines(dict(column=column, **options))]

    def keep(self, column: str, why: str) -> None:
        """Adds a column to `ids`."""
        self.ids.append((column, why))

    def leave_out(self, column: str, why: str) -> None:
        """Notes a column of which no feature is made."""
        self.left_out.append(f"{column or 'the first column, without a name'}: {why}")

    def add_dense(self, column: str, why: str, **options: Option) -> None:
        """Adds a dense feature of a column."""
        self.dense.append([f"# {_plain(why)}", *_lines({**_names(column), **options})])

    def add_sparse(self, column: str, why: str, suffix: str = "", **options: Option) -> str:
        """Adds a sparse feature of a column, with a `suffix` a further feature of it. Returns the feature's name."""
        names = _names(column)
        if suffix:
            name = f"{names['name']}_{suffix}"
            while name in self.columns:
                name += "_"
            names = dict(name=name, column=column)
        self.sparse.append([f"# {_plain(why)}", *_lines({**names, **options})])
        return names["name"]

    def slot_of(self, column: str) -> str:
        """Returns the slot of the sparse feature that has the name of the column."""
        return _names(column)["name"]

    def toml(self, name: str, form: CsvFormat, rows: int) -> str:
        """Returns the spec as TOML.

        Args:
          name: name of the spec.
          form: CsvFormat of the source.
          rows: number of rows that were looked at.
        """
        lines = [f"# Inferred from the first {rows:,} rows: a start to be looked through.", f"name = {_value(name)}"]
        if self.ids:
            lines += ["# kept next to the predictions, not trained on"]
            lines += ["ids = [", *(f"    {_value(column)},  # {_plain(why)}" for column, why in self.ids), "]"]
        lines += [f"# left out: {_plain(what)}" for what in self.left_out]
        lines += ["", "[label]", *self.label, "", "[defaults]", f"dim = {_DIM}"]
        changed = {key: value for key, value in vars(form).items() if value != getattr(CsvFormat(), key)}
        lines += ["", "[csv]", *_lines(changed)] if changed else []
        for section, features in (("dense", self.dense), ("sparse", self.sparse)):
            for feature in features:
                lines += ["", f"[[{section}]]", *feature]
        return "\n".join(lines) + "\n"


def _names(column: str) -> dict[str, str]:
    """Returns the TOML keys of a feature's name and column; the name is the column's if a feature may have that
    name.
    """
    taken = column in _TAKEN or column.startswith(RESERVED_PREFIXES)
    return dict(name=f"feature_{column}", column=column) if taken else dict(name=column)


def _lines(values: Mapping[str, Option]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in values.items()]


def _plain(text: str) -> str:
    """Returns the text in a form that may stand in a TOML comment."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _value(value: Option) -> str:
    """Returns a value as TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    # A JSON string is a TOML string, except that TOML wants the delete character escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
