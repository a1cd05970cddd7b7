"""A trained table inside an exported graph, and the Saver that writes its variables."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numba
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tqdm

from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.table.row_form import FLOAT16, INT8
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.paths import Advanced

_BYTES = 64 << 20
_MOST_PIECES = 256


@dataclasses.dataclass(frozen=True)
class KeyIndex:
    """An index from keys to row numbers, with the keys grouped into buckets by their low bits.

        bucket(key) = key & (buckets - 1)

    All keys of a bucket are in the line line_of[bucket], which other buckets may share. A line has as many places as
    the fullest bucket has keys, rounded up to an even number, and holds as many whole buckets as fit. The number of
    buckets is between half the number of keys and the number of keys. Keys are hashes, so they are spread evenly over
    the buckets. With 20 million keys, the fullest bucket has 12 keys and 1 place in 20 is empty.

    `line_of` is int32[buckets], or int64 for 2^30 or more keys. `lines` is int64[m, width + w]: each line has `width`
    keys, then the bytes of their row numbers in the dtype of `line_of`. An empty place has the key 0 and the row number
    0, which means no row. `count` is the number of keys.
    """

    line_of: np.ndarray
    lines: np.ndarray
    width: int
    count: int

    @staticmethod
    def of(keys: np.ndarray) -> "KeyIndex":
        """Returns the KeyIndex of distinct int64[n] keys other than 0; the row of `keys[i]` is i + 1."""
        count = len(keys)
        buckets = 1 << max(count.bit_length() - 1, 0)
        line_of = np.zeros(buckets, np.int32 if count < (1 << 30) else np.int64)
        # Per bucket: first its number of keys, later its next free place.
        free = np.bincount(keys & (buckets - 1), minlength=buckets).astype(line_of.dtype)
        fullest = max(int(free.max()), 1)
        width = fullest + fullest % 2  # An even width, so that int32 row numbers fill whole int64s.
        count_of_lines = _spread(free, line_of, width)
        lines = np.zeros((count_of_lines, width + width * line_of.itemsize // 8), np.int64)
        _place(keys, free, line_of, lines[:, :width], lines[:, width:].view(line_of.dtype))
        return KeyIndex(line_of, lines, width, count)


@numba.njit(nogil=True, cache=True)
def _spread(free: np.ndarray, line_of: np.ndarray, width: int) -> int:
    """Writes the line of each bucket to `line_of`, and its first place in it to `free`. Returns the number of lines."""
    line = taken = 0
    for bucket in range(len(free)):
        count = free[bucket]
        if taken + count > width:
            line, taken = line + 1, 0
        line_of[bucket], free[bucket] = line, taken
        taken += count
    return line + 1


@numba.njit(nogil=True, cache=True)
def _place(
    keys: np.ndarray, free: np.ndarray, line_of: np.ndarray, keys_there: np.ndarray, rows_there: np.ndarray
) -> None:
    mask = len(free) - 1
    for i in range(len(keys)):
        bucket = keys[i] & mask
        line, place = line_of[bucket], free[bucket]
        free[bucket] += 1
        keys_there[line, place], rows_there[line, place] = keys[i], i + 1


class ExportedTable:
    """The rows of a table and their `KeyIndex`, as variables of the graph. A request only gathers from them.

    The graph has no custom operation, no hash table to fill, and no operation whose output grows with the table. No
    operation reads a whole variable, because TensorFlow would then copy it.

    `variables` are, by name, `rows` float32[1 + n, lanes], the weights in their form, whose first row is 0, and the
    index's `line_of` and `lines`. There are none until the first `look_up`, so a table that is not read is not
    exported. `linear_start` is the column of a row's linear weight.
    """

    def __init__(self, config: TableConfig, index: KeyIndex) -> None:
        self._config, self.count = config, index.count
        self.index_values = {"line_of": index.line_of, "lines": index.lines}
        self.linear_start = config.weights - 1
        self.variables: dict[str, tf.Variable] = {}

    def look_up(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns float32[..., weights], the rows of int64[...] keys; zeros for the key 0 and keys without a row."""
        if not self.variables:
            self._make_variables()
        numbers = row_numbers(tf.reshape(keys, [-1]), self.variables["line_of"], self.variables["lines"])
        rows = _decoded(tf.gather(self.variables["rows"], numbers), self._config)
        return tf.reshape(rows, tf.concat([tf.shape(keys), [self._config.weights]], 0))

    def _make_variables(self) -> None:
        shapes = {name: (value.shape, value.dtype) for name, value in self.index_values.items()}
        rows = [1 + self.count, self._config.form.weight_lanes]
        with tf1.variable_scope(f"export_{self._config.name}"):
            for name, (shape, dtype) in {**shapes, "rows": (rows, tf.float32)}.items():
                # The initializer never runs: the values come from the checkpoint that `TableSaver` writes.
                self.variables[name] = tf1.get_variable(
                    name, shape, dtype, tf1.zeros_initializer(), trainable=False, use_resource=True
                )


def _decoded(stored: tf.Tensor, config: TableConfig) -> tf.Tensor:
    """Returns float32[n, weights] of the leading lanes of stored rows, as `RowForm.take` does."""
    parts, lane = [], 0
    for kind, dim, lanes in config.form.segments:
        part = stored[:, lane : lane + lanes]
        if kind == INT8:
            codes = tf.reshape(tf.bitcast(part[:, 1:], tf.int8), [-1, 4 * (lanes - 1)])[:, :dim]
            part = part[:, :1] * tf.cast(codes, tf.float32)
        elif kind == FLOAT16:
            part = tf.cast(tf.reshape(tf.bitcast(part, tf.float16), [-1, 2 * lanes])[:, :dim], tf.float32)
        parts.append(part)
        lane += lanes
    return tf.concat(parts, 1) if len(parts) > 1 else parts[0]


def row_numbers(keys: tf.Tensor, line_of: tf.Variable, lines: tf.Variable) -> tf.Tensor:
    """Returns the row number of each key, int64[n], in a `KeyIndex`; 0 for a key without a row."""
    width = 8 * lines.shape[1] // (8 + line_of.dtype.size)
    line = tf.gather(line_of, tf.bitwise.bitwise_and(keys, np.int64(line_of.shape[0] - 1)))
    of_keys = tf.gather(lines, line)
    rows_there = tf.reshape(tf.bitcast(of_keys[:, width:], line.dtype), [-1, width])
    # A key is in its line at most once, so the maximum below is its row number.
    found = tf.where(tf.equal(of_keys[:, :width], keys[:, None]), rows_there, tf.zeros([], rows_there.dtype))
    return tf.reduce_max(found, 1)


class CheckpointParts:
    """Writes pieces of variables, each as a checkpoint, and joins these checkpoints without reading them again.

    TensorFlow restores the pieces as one variable, because they are stored like the slices of a partitioned variable.
    `prefix` is that of the joined checkpoint, as for `Saver.save`; its directory must exist.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._written: list[str] = []

    def next_part(self) -> str:
        """Returns the prefix of the next part. The caller writes a checkpoint with this prefix."""
        self._written.append(os.path.join(f"{self._prefix}_parts", f"{len(self._written):05d}"))
        return self._written[-1]

    def add(self, name: str, shape: Sequence[int], blocks: Iterable[np.ndarray]) -> None:
        """Writes a variable whose rows come in blocks, in order. Raises ValueError if the number of rows is wrong."""
        written, rest = 0, ":-" * (len(shape) - 1)
        for values in _pieces(blocks, fewest=-(-shape[0] // _MOST_PIECES)):
            piece = f"{' '.join(map(str, shape))} {written},{len(values)}{rest}"
            with _session() as session:
                value = tf1.placeholder(values.dtype, values.shape)
                save = tf.raw_ops.SaveV2(
                    prefix=self.next_part(), tensor_names=[name], shape_and_slices=[piece], tensors=[value]
                )
                session.run(save, {value: values})
            written += len(values)
        if written != shape[0]:
            raise ValueError(f"variable {name}: expected {shape[0]} rows, got {written}")

    def join(self) -> None:
        """Joins the parts into one checkpoint by renaming their files."""
        with _session() as session:
            merge = tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=self._written, destination_prefix=self._prefix, delete_old_dirs=True
            )
            session.run(merge)


def _pieces(blocks: Iterable[np.ndarray], fewest: int) -> Iterator[np.ndarray]:
    """Yields the rows of blocks in arrays of at least `_BYTES` and `fewest` rows, and less than twice as many."""
    waiting: list[np.ndarray] = []
    for block in blocks:
        rows = max(_BYTES // max(block[:1].nbytes, 1), fewest)
        for first in range(0, len(block), rows):
            waiting.append(block[first : first + rows])
            if sum(map(len, waiting)) >= rows:
                yield np.concatenate(waiting)
                waiting.clear()
    if waiting:
        yield np.concatenate(waiting)


@contextlib.contextmanager
def _session() -> Iterator[tf1.Session]:
    with tf.Graph().as_default(), tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
        yield session


class TableSaver(tf1.train.Saver):
    """A Saver that restores the graph's variables as usual, and saves without holding a table in memory.

    For the rows, `path` and `files`, see `snapshot.merged`. The session need not initialize the variables of the
    tables. `advanced` is called with a text after each block of rows.
    """

    def __init__(
        self,
        path: str,
        files: Sequence[dict[str, Any]],
        tables: Mapping[str, ExportedTable],
        advanced: Advanced = lambda text: None,
    ) -> None:
        super().__init__()
        self._path, self._files, self._advanced = path, files, advanced
        self._tables = {name: table for name, table in tables.items() if table.variables}
        of_tables = {variable.name for table in tables.values() for variable in table.variables.values()}
        self.dense_variables = [v for v in tf1.global_variables() if v.name not in of_tables]
        self.dense = tf1.train.Saver(self.dense_variables)

    def save(
        self, sess: tf1.Session, save_path: str, write_meta_graph: bool = False, write_state: bool = False
    ) -> None:
        """Writes the checkpoint `save_path`. Its directory must exist."""
        parts = CheckpointParts(save_path)
        self.dense.save(sess, parts.next_part(), write_meta_graph=write_meta_graph, write_state=write_state)
        for name, table in self._tables.items():
            for part, values in table.index_values.items():
                parts.add(table.variables[part].op.name, values.shape, [values])
            variable = table.variables["rows"]
            parts.add(variable.op.name, variable.shape.as_list(), self._rows(name, table.count))
        parts.join()

    def _rows(self, name: str, count: int) -> Iterator[np.ndarray]:
        """Yields blocks of the rows of a table's variable: a row of zeros, then the weights of each key."""
        files = [entry for entry in self._files if entry["table"] == name]
        with tqdm.tqdm(desc=f"writing {name}", total=count, unit=" rows", disable=not sys.stderr.isatty()) as bar:
            for number, (config, keys, stored) in enumerate(snapshot.merged(self._path, files)):
                if number == 0:
                    yield np.zeros((1, config.form.weight_lanes), np.float32)
                yield stored[:, : config.form.weight_lanes].copy()
                bar.update(len(keys))
                self._advanced(f"writing {name}")
