"""Reads a text file in blocks of whole lines."""

import codecs
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

_MARK = b"\xef\xbb\xbf"  # The UTF-8 byte order mark.
_BREAK = re.compile(rb"\r\n|\r|\n")
_FIRST = 1 << 16  # Number of bytes to read first; more are read if the first line is longer.
_NOT_TEXT = {
    b"\x1f\x8b": "compressed by gzip: rename it to end in .gz",
    b"BZh": "compressed by bzip2: rename it to end in .bz2",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard: rename it to end in .zst",
    b"\xff\xfe": "UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`",
    b"PAR1": "Parquet: read it as format parquet",
}


class TextBlocks:
    r"""Reads a file, which may be compressed (.gz, .bz2, .zst), in blocks that end at the end of a line.

    A line ends in `\n` or `\r\n`. If the file's first line ends in a `\r` without `\n`, each `\r` ends a line. If the
    last line has no line end, one is added. A UTF-8 byte order mark is removed.

    Args:
      size: approximate number of bytes per block.
      longest: largest number of bytes of a line, at least `size`.
      encoding: encoding of the file, which contains ASCII. The blocks are in UTF-8. A byte that the encoding lacks is
        not changed, so that it is found as invalid UTF-8 later.

    Attributes:
      ended: whether the last block that `read` returned is the last block of the file.
    """

    def __init__(self, file: str, size: int, longest: int, encoding: str = "utf-8") -> None:
        self._file, self._size, self._longest = file, size, longest
        self._decoder = None
        if codecs.lookup(encoding).name != "utf-8":
            self._decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
        self._held, self.ended = b"", False
        self._stream = self._checked(path_of(file).open_stream)
        start = self._checked(self._next, min(_FIRST, size))
        while len(start) < longest and not _BREAK.search(start[:-1]):
            more = self._checked(self._next, len(start))
            if not more:
                break
            start += more
        start = start.removeprefix(_MARK)
        if not start:
            raise UserError(f"{file}: it is empty; expected text")
        for magic, what in _NOT_TEXT.items():
            if start.startswith(magic):
                raise UserError(f"{file}: it is not text, but {what}")
        end = _BREAK.search(start)
        self._returns = end is not None and end[0] == b"\r"
        self._rest = self._with_line_ends(start)

    def __enter__(self) -> "TextBlocks":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, before: int) -> bytes:
        """Returns the next lines; b"" after the last line. `before` is the number of previous lines, for messages."""
        text = self._rest
        while True:
            more = self._with_line_ends(self._checked(self._next, self._size, before=before))
            text += more
            if not more:
                self.ended, self._rest = True, b""
                return text if not text or text.endswith(b"\n") else text + b"\n"
            if end := text.rfind(b"\n") + 1:
                self._rest = text[end:]
                return text[:end]
            if len(text) > self._longest:
                raise UserError(
                    f"{self._file}, line {before + 1}: it is longer than {self._longest:,} bytes; "
                    "expected lines of text"
                )

    def put_back(self, lines: bytes) -> None:
        """Puts back the last lines of the block that `read` returned. The next block begins with these lines."""
        self._rest = lines + self._rest

    def _next(self, size: int) -> bytes:
        """Returns about `size` bytes as UTF-8; b"" at the end."""
        while True:
            text = self._stream.read(size)
            if self._decoder is None:
                return text
            decoded = self._decoder.decode(text, final=not text).encode(errors="surrogateescape")
            if decoded or not text:  # The bytes may be only a part of a character.
                return decoded

    def _with_line_ends(self, text: bytes) -> bytes:
        r"""Converts line ends to `\n`. Holds back a `\r` at the end until the next call, because a `\n` may follow."""
        if not self._returns:
            return text
        last = not text
        text, self._held = self._held + text, b""
        if text.endswith(b"\r") and not last:
            text, self._held = text[:-1], b"\r"
        return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _checked(self, read: Callable[..., Any], *arguments: Any, before: int = 0) -> Any:
        try:
            return read(*arguments)
        except (OSError, UnicodeError, pa.ArrowInvalid) as error:
            after = f" after line {before}" if before else ""
            raise UserError(
                f"{self._file}: cannot be read{after}: {error}; a truncated or damaged file must be written again"
            ) from error
