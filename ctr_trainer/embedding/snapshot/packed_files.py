"""The files of rows in a publication: Arrow IPC files, readable by any program that reads Arrow.

    rows       NAME-SHARD-of-SHARDS.rows.arrow       columns `key` int64, `row` fixed_size_binary[value_bytes]
    removed    NAME-SHARD-of-SHARDS.removed.arrow    column `key` int64; only if there are any

`packed_rows` says what a `row` is. A key comes once, in one of the two. Every schema's metadata holds the TableConfig
as JSON. `publication.records` says which files are a state.
"""

import numpy as np
import pyarrow as pa

from ctr_trainer.embedding.snapshot.packed_rows import value_bytes
from ctr_trainer.embedding.snapshot.snapshot import CONFIG, KEY, config_to_json
from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError

ROWS, REMOVED = "rows", "removed"


def file_name(table, kind, shard=0, shards=1):
    """-> the name of a file of a table's `kind`, `rows` or `removed`."""
    return f"{table}-{shard:05d}-of-{shards:05d}.{kind}.arrow"


def schema(config, dtype, kind):
    """-> the pyarrow schema of a table's files of a kind."""
    row = pa.field("row", pa.binary(value_bytes(config, dtype)), nullable=False)
    fields = {ROWS: [KEY, row], REMOVED: [KEY]}[kind]
    return pa.schema(fields, {CONFIG: config_to_json(config)})


def value_array(values):
    """uint8[n, value_bytes], C-contiguous -> an Arrow array, without a copy."""
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(values.shape[1]), len(values), [None, pa.py_buffer(values.reshape(-1))]
    )


def read_rows(path, config, dtype):
    """Yields (keys int64[n], values uint8[n, value_bytes]) of a file of rows, views of its blocks.

    Args:
      path: path or URL of the file, which was checked: see `records.check_files`.
      config: the table's `TableConfig`.
      dtype: of the record.
    """
    for batch in _batches(path, schema(config, dtype, ROWS)):
        rows = batch.column("row")
        width = rows.type.byte_width
        values = np.frombuffer(rows.buffers()[1], np.uint8, len(rows) * width, rows.offset * width)
        yield batch.column("key").to_numpy(), values.reshape(-1, width)


def read_removed(path, config, dtype):
    """Yields int64[n], the keys of a file of removed keys; arguments as for `read_rows`."""
    for batch in _batches(path, schema(config, dtype, REMOVED)):
        yield batch.column("key").to_numpy()


def _batches(path, expected):
    path = path_of(path)
    try:
        with path.open_input() as source, pa.ipc.open_file(source) as reader:
            if not reader.schema.equals(expected):
                raise UserError(f"{path}: columns {reader.schema}, expected {expected}")
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: not an Arrow IPC file of published rows: {error}") from None
