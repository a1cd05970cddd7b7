"""Finds the rows, blank lines and bad lines of delimited text."""

import dataclasses

import numba
import numpy as np

from ctr_trainer.features.columns import CsvFormat

ROW, BLANK, MISFIT, UNCLOSED, RETURN, NUL = range(6)
_LF, _CR = ord("\n"), ord("\r")


@dataclasses.dataclass(frozen=True)
class Lines:
    """The units of a block: its rows, blank lines and bad lines. Each array has one value per unit, in order.

    Attributes:
      kinds: int8, ROW, BLANK, or the fault of a bad line: MISFIT (another number of fields), UNCLOSED (a quote is not
        closed), RETURN (a `\\r` outside of quotes and not at the end), NUL (a zero byte).
      starts: int64, the offset of the unit's first byte in the block.
      first_lines: int64, the number of the unit's first line, from 0 at the block's start.
      spans: int64, the number of lines of the unit.
      fields: int64, for a MISFIT its number of fields; for other bad lines the index of the wrong field, from 0.
      end: the offset after the last unit. The rest of the block can be parsed only together with the next lines.
    """

    kinds: np.ndarray
    starts: np.ndarray
    first_lines: np.ndarray
    spans: np.ndarray
    fields: np.ndarray
    end: int


def count(block: bytes, form: CsvFormat) -> tuple[int, int, bool]:
    r"""Counts the lines of a block of whole lines.

    Returns:
      (number of lines, number of lines that consist only of a line end, whether `scan` must find the rows). Scanning is
      necessary if the block has a quote character, a `\r` without a following `\n`, or a zero byte.
    """
    text = np.frombuffer(block, np.uint8)
    lines, blank, quotes, returns, nuls = _count(text, np.uint8(ord(form.quote or "\0")))
    if returns:
        ends, more_blank = _count_ends(text)
        returns, blank = returns - ends, blank + more_blank
    return lines, blank, bool((form.quote and quotes) or returns or nuls)


def scan(block: bytes, form: CsvFormat, fields: int, final: bool) -> Lines:
    """Finds the rows of a block of whole lines.

    A quoted field with line breaks ends at its closing quote if the row then has at most `form.lines_per_row` lines and
    the right number of fields. Otherwise its first line is a bad line, and the next line begins a new row.

    Args:
      fields: number of fields of a row.
      final: whether this is the last block. Otherwise, a row that may continue is left for the next block.
    """
    text = np.frombuffer(block, np.uint8)
    found = np.empty((5, block.count(b"\n")), np.int64)
    quote = ord(form.quote) if form.quote else -1
    rows, end = _scan(text, ord(form.delimiter), quote, fields, form.lines_per_row, final, found)
    kinds, starts, first_lines, spans, places = found[:, :rows]
    return Lines(kinds.astype(np.int8), starts, first_lines, spans, places, end)


@numba.njit(nogil=True, cache=True)
def _count(text: np.ndarray, quote: np.uint8) -> tuple[int, int, int, int, int]:
    """Counts line ends, empty lines, quotes, carriage returns and zero bytes, in loops without branches."""
    lf, cr, nul = np.uint8(_LF), np.uint8(_CR), np.uint8(0)
    lines = quotes = returns = nuls = 0
    for character in text:
        lines += character == lf
        quotes += character == quote
        returns += character == cr
        nuls += character == nul
    blank = int(text[0] == lf)
    for i in range(1, len(text)):
        blank += (text[i] == lf) & (text[i - 1] == lf)
    return lines, blank, quotes, returns, nuls


@numba.njit(nogil=True, cache=True)
def _count_ends(text: np.ndarray) -> tuple[int, int]:
    """Counts the carriage returns that are part of a line end, and the empty lines that end in this way."""
    ends = blank = 0
    for i in range(1, len(text)):
        if text[i] == _LF and text[i - 1] == _CR:
            ends += 1
            blank += i == 1 or text[i - 2] == _LF
    return ends, blank


@numba.njit(nogil=True, cache=True)
def _scan(
    text: np.ndarray, delimiter: int, quote: int, fields: int, most_lines: int, final: bool, found: np.ndarray
) -> tuple[int, int]:
    at = line = rows = 0
    while at < len(text):
        i, column, lines, second, open_column, wrong_column = at, 0, 0, 0, 0, 0
        kind, quoted, begins, closed = ROW, False, True, False
        while i < len(text) and lines < most_lines and not closed:
            character = text[i]
            if character == 0 and kind != NUL:
                kind, wrong_column = NUL, column
            if character == _LF:
                lines += 1
                if lines == 1:
                    second, open_column = i + 1, column
                closed = not quoted
            elif quoted:
                if character == quote:
                    if text[i + 1] == quote:
                        i += 1
                    else:
                        quoted = False
            elif character == delimiter:
                column += 1
            elif character == quote and begins:
                quoted = True
            elif character == _CR and text[i + 1] != _LF and kind == ROW:
                kind, wrong_column = RETURN, column
            begins = character == delimiter and not quoted
            i += 1
        if not closed and lines < most_lines and not final:
            break
        whole = closed and (lines == 1 or (kind == ROW and column + 1 == fields))
        if not whole:
            kind, lines, i, wrong_column = UNCLOSED, 1, second, open_column
        elif kind == ROW and (i - at == 1 or (i - at == 2 and text[at] == _CR)):
            kind = BLANK
        elif kind == ROW and column + 1 != fields:
            kind, wrong_column = MISFIT, column + 1
        found[0, rows], found[1, rows], found[2, rows], found[3, rows], found[4, rows] = (
            kind, at, line, lines, wrong_column,
        )  # fmt: skip
        rows += 1
        at = i
        line += lines
    return rows, at
