"""Makes a `Path` of what a user names: a path, or a URL of any kind that `pyarrow.fs` knows."""

import urllib.parse

from ctr_trainer.files.local_path import LocalPath
from ctr_trainer.files.pure_store_path import is_url
from ctr_trainer.files.store_path import StorePath

_LOCAL = "file://"


def path_of(named):
    """-> the `Path` of a path or URL, as `data/day_1.parquet`, `s3://bucket/logs` or `file:///data`.

    Args:
      named: str, `os.PathLike` or a `Path`.

    Raises:
      UserError: the URL cannot be used; names it and says why.
    """
    text = str(named)
    if text.startswith(_LOCAL):
        return LocalPath(urllib.parse.unquote(text.removeprefix(_LOCAL)))
    return StorePath.of(text) if is_url(text) else LocalPath(text)


def is_local(named):
    """-> whether a path or URL is of the local disk, so that any program can write there."""
    return not is_url(str(named)) or str(named).startswith(_LOCAL)
