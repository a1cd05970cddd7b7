"""Finds the rows and the bad rows of delimited text, in blocks that Arrow's parser does not read line by line.

Arrow reads a quoted field up to its closing quote, so that one stray quote can swallow thousands of rows. It ends a row
at a carriage return, and takes a zero byte for text. Its `invalid_row_handler` gets only rows with another number of
fields, and only if they are UTF-8.
"""

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
    special, field, closed = _patterns(delimiter, quote)
    at = line = 0
    while at < len(block):
        end = stop = block.index(b"\n", at) + 1
        if special.search(block, at, end):
            limit, lines = end, 1
            while lines < form.lines_per_row and limit < len(block):
                limit, lines = block.index(b"\n", limit) + 1, lines + 1
            found, stop = _fields(field, block, at, limit)
            is_whole = block[stop - 1 : stop] == b"\n" and stop > at
            if not is_whole and not final and lines < form.lines_per_row and _is_open(block[stop:limit], quote, closed):
                return
            is_long = stop > end
            if not is_whole or (is_long and found != fields):
                found, place = _fields(field, block, at, end)
                rest, stop = block[place:end], end
                fault = _ZERO if b"\0" in rest else _UNCLOSED if _is_open(rest, quote, closed) else _RETURN
                yield Lines(at, stop, line, fault, found)
                at, line = stop, line + 1
                continue
        else:
            found = block.count(delimiter, at, end) + 1
        if found == fields:
            yield Lines(at, stop, line)
        elif block[at:end] not in (b"\n", b"\r\n"):
            cure = f"; {QUOTE_CURE}" if quote and quote in block[at:end] else ""
            yield Lines(at, stop, line, f"a row of {fields} fields (it has {found}){cure}")
        line += block.count(b"\n", at, stop)
        at = stop


def _fields(field: re.Pattern[bytes], block: bytes, at: int, limit: int) -> tuple[int, int]:
    """Counts the valid fields of the row that begins at `at`. Returns (number, offset after the last one)."""
    count = 0
    while found := field.match(block, at, limit):
        count, at = count + 1, found.end()
        if block[at - 1 : at] == b"\n":
            break
    return count, at


def _is_open(text: bytes, quote: bytes, closed: re.Pattern[bytes]) -> bool:
    """Whether a text begins with a quoted field that does not end in it."""
    return bool(quote) and text.startswith(quote) and not closed.match(text)


@functools.cache
def _patterns(delimiter: bytes, quote: bytes) -> tuple[re.Pattern[bytes], re.Pattern[bytes], re.Pattern[bytes]]:
    """Returns patterns of what makes a line special, of a field with its end, and of a closed quoted text."""
    d, q = re.escape(delimiter), re.escape(quote)
    plain = rb"[^%b\r\n\0]*" % d
    closed = rb"%b[^%b\0]*(?:%b%b[^%b\0]*)*%b(?!%b)" % (q, q, q, q, q, q, q) if quote else rb"(?!)"
    field = rb"(?:%b%b|(?!%b)%b)" % (closed, plain, q, plain) if quote else plain
    return re.compile(rb"[\0%b]|\r(?!\n)" % q), re.compile(rb"%b(?:%b|\r?\n)" % (field, d)), re.compile(closed)
