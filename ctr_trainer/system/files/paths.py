"""Makes a `Path` of what a user names: a path, or a URL of any kind that `pyarrow.fs` knows."""

import urllib.parse
import zlib
from typing import Any

from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.path import Path
from ctr_trainer.system.files.store_path import StorePath
from ctr_trainer.system.files.store_url import is_url

_BLOCK = 1 << 22
_LOCAL = "file://"


def bytes_and_crc32(path: Path) -> tuple[int, int]:
    """Returns (number of bytes, CRC-32) of the file at a `Path`, which is read once."""
    size = crc32 = 0
    for block in path.blocks(_BLOCK):
        crc32, size = zlib.crc32(block, crc32), size + len(block)
    return size, crc32


def path_of(named: Any) -> Path:
    """Returns the `Path` of a path or URL, such as `data/day_1.parquet`, `s3://bucket/logs` or `file:///data`.

    Args:
      named: str, `os.PathLike` or a `Path`.

    Raises:
      UserError: the URL cannot be used; names it and says why.
    """
    text = str(named)
    if text.startswith(_LOCAL):
        return LocalPath(urllib.parse.unquote(text.removeprefix(_LOCAL)))
    return StorePath.of(text) if is_url(text) else LocalPath(text)


def is_local(named: Any) -> bool:
    """Returns whether a path or URL is of the local disk, so that any program can write there."""
    return not is_url(str(named)) or str(named).startswith(_LOCAL)
