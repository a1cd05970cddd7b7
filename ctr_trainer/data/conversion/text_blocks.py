"""Reads a text file in blocks of whole lines."""

import codecs
import contextlib
import re
from collections.abc import Generator, Iterator

import pyarrow as pa

from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

BLOCK = 8 << 20  # Bytes to read at a time. Arrow parses larger blocks at half the speed.
LONGEST_LINE = 32 << 20  # Bytes.
_MARK = b"\xef\xbb\xbf"  # The UTF-8 byte order mark.
_NOT_TEXT = {
    b"\x1f\x8b": "compressed by gzip: rename it to end in .gz",
    b"BZh": "compressed by bzip2: rename it to end in .bz2",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard: rename it to end in .zst",
    b"\xff\xfe": "UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`",
    b"PAR1": "Parquet: read it as format parquet",
}


def text_blocks(file: str, encoding: str = "utf-8") -> Generator[bytes, None, None]:
    """Yields a file, which may be compressed (.gz, .bz2, .zst), in blocks that end at the end of a line, in UTF-8.

    A line ends in a line feed, also after a carriage return. If the last line has no line end, one is added. A UTF-8
    byte order mark is removed. `encoding` contains ASCII; a byte that it lacks is not changed, so that it is found as
    invalid UTF-8 later. Raises UserError if the file is empty, damaged or no text, or a line is longer than
    `LONGEST_LINE`.
    """
    rest, before = b"", 0
    pieces = _pieces(file, encoding)
    while True:
        try:
            piece = next(pieces, None)
        except (OSError, UnicodeError, pa.ArrowInvalid) as error:
            after = f" after line {before}" if before else ""
            raise UserError(
                f"{file}: cannot be read{after}: {error}; a truncated or damaged file must be written again"
            ) from error
        if piece is None:
            break
        text = rest + piece
        end = text.rfind(b"\n") + 1
        if end:
            yield text[:end]
            before += text.count(b"\n", 0, end)
        elif len(text) > LONGEST_LINE:
            raise UserError(
                f"{file}, line {before + 1}: it is longer than {LONGEST_LINE:,} bytes; expected lines of text"
            )
        rest = text[end:]
    if rest:
        yield rest + b"\n"


def first_line(file: str, encoding: str = "utf-8") -> bytes:
    """Returns a file's first line, without its end."""
    with contextlib.closing(text_blocks(file, encoding)) as blocks:
        return next(blocks).partition(b"\n")[0].rstrip(b"\r")


def _pieces(file: str, encoding: str) -> Iterator[bytes]:
    """Yields the text of a file in UTF-8, without its byte order mark."""
    decoder = None
    if codecs.lookup(encoding).name != "utf-8":
        decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
    with path_of(file).open_stream() as stream:
        start = stream.read(max(BLOCK, 4))
        _check_start(file, start)
        piece = start.removeprefix(_MARK)
        while piece:
            yield decoder.decode(piece).encode(errors="surrogateescape") if decoder else piece
            piece = stream.read(BLOCK)
        if decoder:
            yield decoder.decode(b"", final=True).encode(errors="surrogateescape")


def _check_start(file: str, start: bytes) -> None:
    if not start.removeprefix(_MARK):
        raise UserError(f"{file}: it is empty; expected text")
    for magic, what in _NOT_TEXT.items():
        if start.startswith(magic):
            raise UserError(f"{file}: it is not text, but {what}")
    if re.match(rb"[^\r\n]*\r[^\n]", start):
        raise UserError(
            rf"{file}, line 1: a carriage return is not at its end. If all lines end in `\r` alone, convert the file "
            r"with `tr '\r' '\n'`"
        )
