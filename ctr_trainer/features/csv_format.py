"""The form of delimited text."""

import dataclasses

from ctr_trainer.messages.errors import UserError

_BREAKS = "\r\n"


@dataclasses.dataclass(frozen=True)
class CsvFormat:
    """The form of files of the `csv` format.

    A field that begins with the quote character ends behind the next single quote character; a doubled quote character
    stands for one. A quote character inside a field that does not begin with it is text.

    Attributes:
      delimiter: text between two fields, one ASCII character.
      header: whether a file's first line names its columns.
      columns: names of the columns, in order. Required without a header; with a header they replace its names.
      null_values: fields that stand for a missing value.
      strip: remove white space around every field.
      label_suffix: an ending of the label's text that is not part of the label, such as the `.` of Adult's test file.
      quote: the quote character, one ASCII character; "" if quotes are text like any other.
      lines_per_row: largest number of lines of one row. Above 1 a quoted field may hold line breaks. If a quote is not
        closed within that number of lines, its first line is a bad row, and the next line is read as a row of its own.

    Raises:
      UserError: the delimiter or quote is not one character, there is neither a header nor columns, or `lines_per_row`
        is above 1 without a quote character.
    """

    delimiter: str = ","
    header: bool = True
    columns: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ("",)
    strip: bool = False
    label_suffix: str = ""
    quote: str = '"'
    lines_per_row: int = 1

    def __post_init__(self) -> None:
        for name, value, lengths in (("delimiter", self.delimiter, (1,)), ("quote", self.quote, (0, 1))):
            if len(value.encode()) not in lengths or value in tuple(_BREAKS):
                raise UserError(f"{name} {value!r} is not one character of ASCII")
        if self.delimiter == self.quote:
            raise UserError(f"delimiter and quote are both {self.quote!r}")
        if self.lines_per_row < 1 or (self.lines_per_row > 1 and not self.quote):
            raise UserError(
                f"lines_per_row {self.lines_per_row}: it is at least 1, and above 1 only with a quote character, since "
                "only a quoted field may hold a line break"
            )
        if not self.header and not self.columns:
            raise UserError("without a header, 'columns' must name the columns in order")
        for name in self.columns:
            if self.columns.count(name) > 1:
                raise UserError(f"'columns' has {name!r} {self.columns.count(name)} times")
