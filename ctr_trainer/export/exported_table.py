"""A trained table inside a graph."""

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


class ExportedTable:
    """Sorted keys and their rows as two variables, found by binary search: no custom operation, no hash table to fill.

    Args:
      config: the table's `TableConfig`.
      blocks: iterable of (keys int64[n], rows float32[n, width]); the optimizer's state is left behind.

    Attributes:
      linear_start: the column at which a row's linear weight stands.
    """

    def __init__(self, config, blocks):
        keys, rows = [np.zeros(1, np.int64)], [np.zeros((1, config.weights), np.float32)]  # key 0: no value, zeros
        for block_keys, block_rows in blocks:
            keys.append(block_keys)
            rows.append(np.array(block_rows[:, : config.weights]))
        keys = np.concatenate(keys)
        order = np.argsort(keys, kind="stable")
        self.linear_start = config.weights - 1
        self._values = {"keys": keys[order], "rows": np.concatenate(rows)[order]}
        self._fed, self._variables = {}, {}
        with tf1.variable_scope(f"export_{config.name}"):
            for name, value in self._values.items():
                # Initialised from a fed placeholder: as a constant it would count against the graph's limit of 2 GB.
                self._fed[name] = tf1.placeholder(value.dtype, value.shape)
                self._variables[name] = tf1.get_variable(name, initializer=self._fed[name], trainable=False)

    @property
    def variables(self):
        return list(self._variables.values())

    def initialize(self, session):
        """Gives the variables their values."""
        feed = {self._fed[name]: value for name, value in self._values.items()}
        session.run([variable.initializer for variable in self.variables], feed)

    def look_up(self, keys, start, dim):
        """int64[B, F] -> float32[B, F, dim]: columns `start` to `start + dim` of the keys' rows, zeros if unknown."""
        flat = tf.reshape(keys, [-1])
        sorted_keys = self._variables["keys"]
        at = tf.minimum(tf.searchsorted(sorted_keys, flat), len(self._values["keys"]) - 1)
        found = tf.equal(tf.gather(sorted_keys, at), flat)
        rows = tf.gather(self._variables["rows"], at)[:, start : start + dim]
        rows = tf.where(found[:, None], rows, tf.zeros_like(rows))
        return tf.reshape(rows, tf.concat([tf.shape(keys), [dim]], 0))
