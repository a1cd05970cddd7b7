"""A trained table inside a graph."""

import numpy as np
import tensorflow as tf

from ctr_trainer.export.key_index import LINE

tf1 = tf.compat.v1


class ExportedTable:
    """The rows of a table and a `KeyIndex` of them as variables, which a request reads by gathers alone.

    No custom operation, no hash table to fill, and no operation whose output grows with the table. Nothing reads a
    variable as a whole: TensorFlow copies a variable that gathers read, at each other reading of it.

    Args:
      config: the table's `TableConfig`.
      index: the `KeyIndex` of its rows.

    Attributes:
      variables: by name, those of the graph: `rows` float32[1 + n, weights], the first row of which is 0, and `starts`,
        `keys` and `places` of the index. Empty until the first `look_up`: a table that no model reads is not exported.
      linear_start: the column at which a row's linear weight stands.
    """

    def __init__(self, config, index):
        self._config = config
        self._index = index
        self.linear_start = config.weights - 1
        self.variables = {}

    @property
    def count(self):
        """The number of keys."""
        return self._index.count

    @property
    def no_row(self):
        """float32[1, weights], the first row."""
        return np.zeros((1, self._config.weights), np.float32)

    @property
    def index_values(self):
        """-> dict of the index's variables' names -> arrays."""
        return {"starts": self._index.starts, "keys": self._index.keys, "places": self._index.places}

    def look_up(self, keys):
        """int64[...] -> float32[..., weights], the keys' rows; zeros for a key without a row, as 0."""
        if not self.variables:
            self._make_variables()
        flat = tf.reshape(keys, [-1])
        start = tf.gather(self.variables["starts"], tf.bitwise.bitwise_and(flat, np.int64(self._index.mask)))
        line = tf.bitwise.right_shift(start, tf.constant(LINE.bit_length() - 1, start.dtype))
        # Whole lines: a gather of single keys takes twice as long.
        keys_there = tf.gather(self.variables["keys"], line[:, None] + tf.range(self._index.lines, dtype=line.dtype))
        keys_there = tf.reshape(keys_there, [-1, self._index.lines * LINE])
        within = tf.range(self._index.lines * LINE, dtype=line.dtype)
        # A bucket has each key once.
        at = tf.reduce_max(tf.where(tf.equal(keys_there, flat[:, None]), within, tf.constant(-1, line.dtype)), 1)
        at = tf.where(at < 0, tf.zeros_like(at), line * LINE + at)  # 0 is the place of no key.
        rows = tf.gather(self.variables["rows"], tf.gather(self.variables["places"], at))
        return tf.reshape(rows, tf.concat([tf.shape(keys), [self._config.weights]], 0))

    def _make_variables(self):
        shapes = {name: (value.shape, value.dtype) for name, value in self.index_values.items()}
        rows = [1 + self.count, self._config.weights]
        with tf1.variable_scope(f"export_{self._config.name}"):
            for name, (shape, dtype) in {**shapes, "rows": (rows, tf.float32)}.items():
                # Its initializer never runs: the values come from the checkpoint that `TableSaver` writes.
                self.variables[name] = tf1.get_variable(
                    name, shape, dtype, tf1.zeros_initializer(), trainable=False, use_resource=True
                )
