"""How delimited text is read."""

import dataclasses

from ctr_trainer.errors import UserError


@dataclasses.dataclass(frozen=True)
class CsvFormat:
    """How the `csv` format is read.

    Attributes:
      delimiter: one character.
      header: whether a file's first line names its columns.
      columns: names of the columns, in order; required without a header, in place of its names with one.
      null_values: fields that stand for a missing value.
      strip: remove white space around every field.
      label_suffix: an ending that some files' labels carry and that is not part of them, as Adult's `.`.

    Raises:
      UserError: a delimiter of another length, or neither a header nor columns.
    """

    delimiter: str = ","
    header: bool = True
    columns: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ("",)
    strip: bool = False
    label_suffix: str = ""

    def __post_init__(self):
        if len(self.delimiter) != 1:
            raise UserError(f"delimiter {self.delimiter!r} is not one character")
        if not self.header and not self.columns:
            raise UserError("without a header, 'columns' must name the columns in order")
