"""Saves the variables of an exported graph. The variables of tables are copied from a checkpoint's files."""

import os
import sys

import numpy as np
import tensorflow as tf
import tqdm

from ctr_trainer.embedding.snapshot import snapshot

tf1 = tf.compat.v1
_BYTES = 64 << 20
_MOST_PIECES = 256


class CheckpointParts:
    """Writes pieces of variables, each as a checkpoint, and joins these checkpoints without reading them again.

    TensorFlow restores a variable that was written in pieces as a whole, because the pieces are stored like the slices
    of a partitioned variable.

    Args:
      prefix: prefix of the joined checkpoint, as `Saver.save` takes it; its directory exists.
    """

    def __init__(self, prefix):
        self._prefix = prefix
        self._written = []

    def next_part(self):
        """-> the prefix of the next part; the caller writes a checkpoint with this prefix."""
        self._written.append(os.path.join(f"{self._prefix}_parts", f"{len(self._written):05d}"))
        return self._written[-1]

    def add(self, name, values):
        """Writes an array as the variable `name`."""
        pieces = Pieces(self, name, values.shape, values.dtype)
        pieces.add(values)
        pieces.close()

    def join(self):
        """Joins the parts to the checkpoint, by renaming their files."""
        _run(
            lambda: tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=self._written, destination_prefix=self._prefix, delete_old_dirs=True
            )
        )


class Pieces:
    """One variable of `CheckpointParts`; its values come in blocks, from the first row to the last.

    Args:
      parts: `CheckpointParts`.
      name: name of the variable.
      shape, dtype: shape and dtype of the whole variable.
    """

    def __init__(self, parts, name, shape, dtype):
        self._parts, self._name, self._shape = parts, name, shape
        bytes_a_row = int(np.prod(shape[1:])) * np.dtype(dtype).itemsize
        rows = max(_BYTES // bytes_a_row, -(-shape[0] // _MOST_PIECES))
        self._piece = np.empty((min(rows, shape[0]), *shape[1:]), dtype)
        self._filled = self._written = 0

    def add(self, values):
        """Takes the next rows."""
        while len(values):
            some = values[: len(self._piece) - self._filled]
            self._piece[self._filled : self._filled + len(some)] = some
            self._filled += len(some)
            values = values[len(some) :]
            if self._filled == len(self._piece):
                self._write()

    def close(self):
        """Writes what is left.

        Raises:
          ValueError: the number of rows that came differs from the shape's.
        """
        if self._filled:
            self._write()
        if self._written != self._shape[0]:
            raise ValueError(f"variable {self._name}: expected {self._shape[0]} rows, and {self._written} came")

    def _write(self):
        values = self._piece[: self._filled]
        rest = ":-" * (len(self._shape) - 1)
        piece = f"{' '.join(map(str, self._shape))} {self._written},{self._filled}{rest}"
        prefix = self._parts.next_part()
        fed = {}

        def save():
            value = tf1.placeholder(values.dtype, values.shape)
            fed[value] = values
            return tf.raw_ops.SaveV2(
                prefix=prefix, tensor_names=[self._name], shape_and_slices=[piece], tensors=[value]
            )

        _run(save, fed)
        self._written += self._filled
        self._filled = 0


def _run(make_operation, fed=None):
    with tf.Graph().as_default(), tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
        session.run(make_operation(), fed)


class TableSaver(tf1.train.Saver):
    """A Saver that restores the graph's variables as any Saver does, and saves without holding a table in memory.

    Args:
      checkpoint: the `Checkpoint` whose rows are exported.
      tables: dict of table name -> `ExportedTable`; their variables need no value in the session.
    """

    def __init__(self, checkpoint, tables):
        super().__init__()
        self._checkpoint = checkpoint
        self._tables = {name: table for name, table in tables.items() if table.variables}
        of_tables = {variable.name for table in tables.values() for variable in table.variables.values()}
        self.dense_variables = [v for v in tf1.global_variables() if v.name not in of_tables]
        self.dense = tf1.train.Saver(self.dense_variables)

    def save(self, sess, save_path, write_meta_graph=False, write_state=False):
        """Writes the checkpoint `save_path`, as `saved_model.Builder` wants it; the directory of the path exists."""
        parts = CheckpointParts(save_path)
        self.dense.save(sess, parts.next_part(), write_meta_graph=write_meta_graph, write_state=write_state)
        rows = {}
        for name, table in self._tables.items():
            for part, values in table.index_values.items():
                parts.add(table.variables[part].op.name, values)
            variable = table.variables["rows"]
            rows[name] = Pieces(parts, variable.op.name, variable.shape.as_list(), "float32")
            rows[name].add(table.no_row)
        for config, _, values in self._blocks() if rows else ():
            if config.name in rows:
                rows[config.name].add(values[:, : config.weights])
        for pieces in rows.values():
            pieces.close()
        parts.join()

    def _blocks(self):
        total = sum(table.count for table in self._tables.values())
        with tqdm.tqdm(desc="writing rows", total=total, unit=" rows", disable=not sys.stderr.isatty()) as bar:
            for config, keys, rows in snapshot.merged(self._checkpoint.path, self._checkpoint.tables):
                yield config, keys, rows
                bar.update(len(keys))
