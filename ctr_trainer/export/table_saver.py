"""Saves the variables of an exported graph. The variables of tables are copied from a checkpoint's files."""

import sys

import tensorflow as tf
import tqdm

from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.export.checkpoint_parts import CheckpointParts, Pieces

tf1 = tf.compat.v1


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
