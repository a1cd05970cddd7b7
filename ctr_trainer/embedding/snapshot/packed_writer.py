"""Writes the files of rows of an epoch of a publication; see `packed_files` for what they are."""

import contextlib
import itertools

from ctr_trainer.embedding.snapshot.arrow_file import arrow_file
from ctr_trainer.embedding.snapshot.packed_files import REMOVED, ROWS, file_name, schema, value_array
from ctr_trainer.embedding.snapshot.packed_rows import pack
from ctr_trainer.embedding.snapshot.snapshot import key_array
from ctr_trainer.embedding.table.row_kernels import first_not_finite
from ctr_trainer.messages.errors import diverged

_CURE = "make room there; the training goes on, and tries it again"


def write(path, taking, lock, dtype, epoch, shard=0, shards=1):
    """Writes what one shard's rows of a table give to an epoch; a table that gives nothing has no file.

    Args:
      path: the directory, which exists.
      taking: a `row_watchers.Taking`.
      lock: a context manager that gives the table while it holds its lock, for a block at a time.
      dtype: of the packed rows, see `packed_rows`.
      epoch: its number.
      shard, shards: which part of the table this is.

    Returns:
      a dict for each file: `file` (relative to `path`), `table`, `kind`, `rows`, `bytes` and `crc32`.

    Raises:
      UserError: a file cannot be written, or a row is not finite; names the file, or the table and a key.
    """
    config = taking.config
    entries = []

    @contextlib.contextmanager
    def writing(kind):
        name = file_name(config.name, kind, shard, shards)
        with arrow_file(path, name, schema(config, dtype, kind), _CURE) as file:
            yield file
            entries.append(dict(file=name, table=config.name, kind=kind, **file.finish()))

    blocks = _blocks(taking, lock)
    first = next(blocks, None)
    if first is not None:
        with writing(ROWS) as file:
            for keys, rows in itertools.chain([first], blocks):
                _refuse_not_finite(config.name, epoch, keys, rows)
                file.write([key_array(keys), value_array(pack(rows, config, dtype, epoch))])
    if len(taking.removed):
        with writing(REMOVED) as file:
            file.write([key_array(taking.removed)])
    return entries


def _blocks(taking, lock):
    while True:
        with lock as table, table.locked():
            block = taking.read(table)
        if block is None:
            return
        yield block


def _refuse_not_finite(table, epoch, keys, rows):
    first = first_not_finite(rows)
    if first >= 0:
        raise diverged(f"table {table}, epoch {epoch} of the publication: the row of key {keys[first]} is not finite")
