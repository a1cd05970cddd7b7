"""Recognizes the format of a file by its first bytes and lines."""

import contextlib
import re
import zlib

from ctr_trainer.data import parquet
from ctr_trainer.data.conversion import libsvm
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

_BYTES, _LINES = 1 << 16, 50
_LENGTH = slice(4, 8)  # The upper bytes of the length of a TFRecord file's first record, which are 0.
_LABEL = rf"\s*{libsvm.NUMBER}(\s+{libsvm.QUERY_TOKEN})?"
_SLOT = r"[^\s:,;\"{}]+:[^\s:,;\"{}]+"
_NOT_READ = {
    rf"\s*{_SLOT}(\s+{_SLOT})+\s*": "slot text, as PaddleRec reads it, such as `click:1 12:417091`: write a CSV with a "
    "column per slot, or libffm, such as `1 12:417091:1`",
    r"\s*\{.*\}\s*": "JSON: write its rows as Parquet, for example with DuckDB or pandas",
}


def seen_format(file: str) -> str:
    """Returns `parquet`, `tfrecord`, `libsvm`, `libffm` or, for any other file, `csv`.

    Raises UserError if the file cannot be read, or has a known format that `convert` does not read.
    """
    if parquet.is_parquet(file):
        return "parquet"
    try:
        with path_of(file).open_stream() as stream:
            start = bytes(stream.read(_BYTES))
    except OSError:
        return "csv"  # Its reader names the damage.
    with contextlib.suppress(zlib.error):
        start = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start)
    if start[_LENGTH] == bytes(4):
        return "tfrecord"
    lines = [
        line for line in start.decode(errors="replace").splitlines()[:-1] or [""] if line.partition("#")[0].strip()
    ][:_LINES]
    for format, pattern in (("libffm", libsvm.OF_FIELD), ("libsvm", libsvm.WEIGHTED)):
        if all(re.fullmatch(rf"{_LABEL}(\s+{pattern})*\s*(#.*)?", line) for line in lines) and ":" in "".join(lines):
            return format
    for pattern, what in _NOT_READ.items():
        if lines and all(re.fullmatch(pattern, line) for line in lines):
            raise UserError(f"{file}: its lines are {what}")
    return "csv"
