"""A trained table inside an exported graph."""

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


class ExportedTable:
    """The rows of a table and their `KeyIndex`, as variables of the graph. A request reads them by gathers alone.

    The graph has no custom operation, no hash table to fill, and no operation whose output grows with the table. No
    operation reads a variable as a whole, because TensorFlow would then copy the variable.

    Args:
      config: the table's `TableConfig`.
      index: the `KeyIndex` of the table's rows.

    Attributes:
      variables: dict of name -> variable of the graph: `rows` float32[1 + n, weights], whose first row is 0, and the
        index's `line_of` and `lines`. Empty until the first `look_up`: a table that no model reads is not exported.
      linear_start: column of a row's linear weight.
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
        """float32[1, weights] of zeros, the first row: that of a key without a row."""
        return np.zeros((1, self._config.weights), np.float32)

    @property
    def index_values(self):
        """-> dict of name -> array, for the variables of the index."""
        return {"line_of": self._index.line_of, "lines": self._index.lines}

    def look_up(self, keys):
        """int64[...] -> float32[..., weights], the rows of the keys; zeros for the key 0 and for keys without a row."""
        if not self.variables:
            self._make_variables()
        flat, width = tf.reshape(keys, [-1]), self._index.width
        line_of = tf.gather(self.variables["line_of"], tf.bitwise.bitwise_and(flat, np.int64(self._index.mask)))
        lines = tf.gather(self.variables["lines"], line_of)
        rows_there = tf.reshape(tf.bitcast(lines[:, width:], line_of.dtype), [-1, width])
        # Each key stands in its line once.
        found = tf.where(tf.equal(lines[:, :width], flat[:, None]), rows_there, tf.zeros([], rows_there.dtype))
        rows = tf.gather(self.variables["rows"], tf.reduce_max(found, 1))
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
