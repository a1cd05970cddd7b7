"""How delimited text is read."""

import dataclasses

from ctr_trainer.messages.errors import UserError

_BREAKS = "\r\n"


@dataclasses.dataclass(frozen=True)
class CsvFormat:
    """How the `csv` format is read.

    A field that begins with the quote character ends behind the next single one; a doubled one stands for itself. A
    quote character inside a field that does not begin with it is text.

    Attributes:
      delimiter: one character of ASCII.
      header: whether a file's first line names its columns.
      columns: names of the columns, in order; required without a header, in place of its names with one.
      null_values: fields that stand for a missing value.
      strip: remove white space around every field.
      label_suffix: an ending that some files' labels carry and that is not part of them, as Adult's `.`.
      quote: the quote character, one of ASCII; "" where quotes are text like any other.
      lines_per_row: lines that one row may span, at most: above 1 a quoted field may hold line breaks. A quote that is
        not closed within them makes its first line a bad row, and the next line is read as a row of its own.

    Raises:
      UserError: a delimiter or quote of another length, neither a header nor columns, or line breaks without a quote.
    """

    delimiter: str = ","
    header: bool = True
    columns: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ("",)
    strip: bool = False
    label_suffix: str = ""
    quote: str = '"'
    lines_per_row: int = 1

    def __post_init__(self):
        for name, value, lengths in (("delimiter", self.delimiter, (1,)), ("quote", self.quote, (0, 1))):
            if len(value.encode()) not in lengths or value in tuple(_BREAKS):
                raise UserError(f"{name} {value!r} is not one character of ASCII")
        if self.delimiter == self.quote:
            raise UserError(f"delimiter and quote are both {self.quote!r}")
        if self.lines_per_row < 1 or (self.lines_per_row > 1 and not self.quote):
            raise UserError(
                f"lines_per_row {self.lines_per_row}: it is at least 1, and above 1 only with a quote character, as "
                "a line break stands in a quoted field"
            )
        if not self.header and not self.columns:
            raise UserError("without a header, 'columns' must name the columns in order")
        for name in self.columns:
            if self.columns.count(name) > 1:
                raise UserError(f"'columns' has {name!r} {self.columns.count(name)} times")
