"""A draft of a feature spec: TOML with a comment on each part."""

import dataclasses
import json

from ctr_trainer.features.columns import CsvFormat
from ctr_trainer.features.spec import RESERVED_PREFIXES

_TAKEN = ("label", "weight")
_DIM = 16


@dataclasses.dataclass
class Draft:
    """The TOML lines of a spec, by section.

    Attributes:
      columns: names of all columns of the source. A second feature of a column gets a name that is not among them.
    """

    columns: tuple[str, ...] = ()
    label: list = dataclasses.field(default_factory=list)
    ids: list = dataclasses.field(default_factory=list)
    dense: list = dataclasses.field(default_factory=list)
    sparse: list = dataclasses.field(default_factory=list)
    left_out: list = dataclasses.field(default_factory=list)

    @property
    def has_features(self):
        return bool(self.dense or self.sparse)

    def set_label(self, column, why, **options):
        """Sets the label and its options."""
        self.label = [f"# {_plain(why)}", *_lines(dict(column=column, **options))]

    def keep(self, column, why):
        """Adds a column to `ids`."""
        self.ids.append((column, why))

    def leave_out(self, column, why):
        """Notes a column of which no feature is made."""
        self.left_out.append(f"{column or 'the first column, without a name'}: {why}")

    def add_dense(self, column, why, **options):
        """Adds a dense feature of a column."""
        self.dense.append([f"# {_plain(why)}", *_lines({**_names(column), **options})])

    def add_sparse(self, column, why, suffix="", **options):
        """Adds a sparse feature of a column; with a `suffix`, a further feature of it. -> name of the feature"""
        names = _names(column)
        if suffix:
            name = f"{names['name']}_{suffix}"
            while name in self.columns:
                name += "_"
            names = dict(name=name, column=column)
        self.sparse.append([f"# {_plain(why)}", *_lines({**names, **options})])
        return names["name"]

    def slot_of(self, column):
        """-> the slot of the sparse feature that has the name of the column."""
        return _names(column)["name"]

    def toml(self, name, form, rows):
        """-> the TOML.

        Args:
          name: name of the spec.
          form: CsvFormat of the source.
          rows: number of rows that were looked at.
        """
        lines = [f"# Inferred from the first {rows:,} rows: a start to be looked through.", f"name = {_value(name)}"]
        if self.ids:
            lines += ["# kept beside the predictions, not trained on"]
            lines += ["ids = [", *(f"    {_value(column)},  # {_plain(why)}" for column, why in self.ids), "]"]
        lines += [f"# left out: {_plain(what)}" for what in self.left_out]
        lines += ["", "[label]", *self.label, "", "[defaults]", f"dim = {_DIM}"]
        changed = {key: value for key, value in vars(form).items() if value != getattr(CsvFormat(), key)}
        lines += ["", "[csv]", *_lines(changed)] if changed else []
        for section, features in (("dense", self.dense), ("sparse", self.sparse)):
            for feature in features:
                lines += ["", f"[[{section}]]", *feature]
        return "\n".join(lines) + "\n"


def _names(column):
    """-> the TOML keys of a feature's name and column; the name is the column's if a feature may have that name."""
    taken = column in _TAKEN or column.startswith(RESERVED_PREFIXES)
    return dict(name=f"feature_{column}", column=column) if taken else dict(name=column)


def _lines(values):
    return [f"{key} = {_value(value)}" for key, value in values.items()]


def _plain(text):
    """-> the text in a form that may stand in a TOML comment."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _value(value):
    """-> a value as TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    # A JSON string is a TOML string, except that TOML wants the delete character escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
