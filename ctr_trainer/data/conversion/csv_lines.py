"""Finds the rows and the bad rows of delimited text, in blocks that Arrow's parser does not read line by line.

Arrow reads a quoted field up to its closing quote, so that one stray quote can swallow thousands of rows. It ends a row
at a carriage return, and takes a zero byte for text. Its `invalid_row_handler` gets only rows with another number of
fields, and only if they are UTF-8.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from ctr_trainer.features.columns import CsvFormat

QUOTE_CURE = (
    'in [csv], `quote = ""` gives quotes no special meaning, and `lines_per_row` is the largest number of lines of a '
    "row with quoted line breaks"
)
_UNCLOSED = f"a row whose quotes are closed; {QUOTE_CURE}"
_RETURN = "a row without carriage returns inside"
_ZERO = "text: it contains a zero byte"


class Lines(NamedTuple):
    """Consecutive lines of a block that are a row or a bad row.

    Attributes:
      start, stop: offsets of the lines in the block.
      first: number of the first line, from 0 at the block's start.
      fault: description of a valid row if this is a bad one; otherwise "".
      field: index of a bad row's wrong field; None if the row has another number of fields.
    """

    start: int
    stop: int
    first: int
    fault: str = ""
    field: int | None = None


def lines_of(block: bytes, form: CsvFormat, fields: int, final: bool = True) -> Iterator[Lines]:
    """Yields the `Lines` of a block of whole lines, except empty lines.

    A quoted field with line breaks ends at its closing quote if the row then has at most `form.lines_per_row` lines and
    the right number of fields. Otherwise its first line is a bad row, and the next line begins a new row.

    Args:
      fields: number of fields of a row.
      final: whether this is the last block. Otherwise, a last row that may continue in the next block is left out.
    """
    delimiter, quote = form.delimiter.encode(), form.quote.encode()
    patterns, is_plain = _patterns(delimiter, quote, fields), not is_special(block, form)
    at = line = 0
    while at < len(block):
        end = stop = block.index(b"\n", at) + 1
        fault, found = "", fields
        if is_plain or not patterns.special.search(block, at, end):
            found = block.count(delimiter, at, end) + 1
        elif row := patterns.row.match(block, at, end):
            stop = row.end()
        else:
            limit, lines = end, 1
            while lines < form.lines_per_row and limit < len(block):
                limit, lines = block.index(b"\n", limit) + 1, lines + 1
            if row := patterns.row.match(block, at, limit):
                stop = row.end()
            else:
                if not final and lines < form.lines_per_row and patterns.ends_open(block, at, limit):
                    return
                found, fault = patterns.fault(block, at, end)
        if fault:
            yield Lines(at, stop, line, fault, found)
        elif found == fields:
            yield Lines(at, stop, line)
        elif block[at:end] not in (b"\n", b"\r\n"):
            cure = f"; {QUOTE_CURE}" if quote and quote in block[at:end] else ""
            yield Lines(at, stop, line, f"a row of {fields} fields (it has {found}){cure}")
        line += block.count(b"\n", at, stop)
        at = stop


def is_special(block: bytes, form: CsvFormat) -> bool:
    """Whether a block contains quotes, zero bytes, or carriage returns that are not at the end of a line."""
    is_quoted = bool(form.quote) and form.quote.encode() in block
    return is_quoted or b"\0" in block or block.count(b"\r") != block.count(b"\r\n")


@dataclasses.dataclass(frozen=True)
class _Patterns:
    """Regular expressions for lines with quotes, zero bytes or carriage returns.

    Attributes:
      special: matches a line that must be examined.
      row: matches a row with the right number of fields.
      field: matches a field with the delimiter or line end after it.
      closed: matches a quoted text at the beginning of a field.
    """

    special: re.Pattern[bytes]
    row: re.Pattern[bytes]
    field: re.Pattern[bytes]
    closed: re.Pattern[bytes]
    quote: bytes

    def ends_open(self, block: bytes, at: int, limit: int) -> bool:
        """Whether the row that begins at `at` has a quoted field that does not end before `limit`."""
        _, stop = self._fields(block, at, limit)
        return self._is_open(block[stop:limit])

    def fault(self, block: bytes, at: int, end: int) -> tuple[int, str]:
        """Returns (number of fields, "") of a line, or the index and the fault of its first wrong field."""
        found, stop = self._fields(block, at, end)
        if stop == end:
            return found, ""
        rest = block[stop:end]
        return found, _ZERO if b"\0" in rest else _UNCLOSED if self._is_open(rest) else _RETURN

    def _fields(self, block: bytes, at: int, limit: int) -> tuple[int, int]:
        """Returns the number of the valid fields of a row, and the offset after the last one."""
        count = 0
        while found := self.field.match(block, at, limit):
            count, at = count + 1, found.end()
            if block[at - 1 : at] == b"\n":
                break
        return count, at

    def _is_open(self, text: bytes) -> bool:
        return bool(self.quote) and text.startswith(self.quote) and not self.closed.match(text)


@functools.cache
def _patterns(delimiter: bytes, quote: bytes, fields: int) -> _Patterns:
    d, q = re.escape(delimiter), re.escape(quote)
    plain = rb"[^%b\r\n\0]*" % d
    closed = rb"%b[^%b\0]*(?:%b%b[^%b\0]*)*%b(?!%b)" % (q, q, q, q, q, q, q) if quote else rb"(?!)"
    field = rb"(?:%b%b|(?!%b)%b)" % (closed, plain, q, plain) if quote else plain
    return _Patterns(
        special=re.compile(rb"[\0%b]|\r(?!\n)" % q),
        row=re.compile(rb"(?:%b%b){%d}%b\r?\n" % (field, d, fields - 1, field)),
        field=re.compile(rb"%b(?:%b|\r?\n)" % (field, d)),
        closed=re.compile(closed),
        quote=quote,
    )
