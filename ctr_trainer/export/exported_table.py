"""A trained table inside an exported graph."""

import dataclasses

import numba
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class KeyIndex:
    """Keys in buckets by their low bits, and the number of each key's row.

        bucket(key) = key & mask      all keys of a bucket stand in the line line_of[bucket], beside other buckets' keys

    A line has as many places as the fullest bucket has keys, and holds as many whole buckets as fit. The number of
    buckets is between half the number of keys and the number of keys, and fingerprints are spread evenly over them.
    With 20 million keys the fullest bucket has 12 keys, and 1 place in 20 is empty.

    Attributes:
      line_of: int32[buckets], the line of each bucket; int64 from 2^30 keys on.
      lines: int64[m, width + w]. Each line has `width` keys, then the bytes of the numbers of their rows, in the dtype
        of `line_of`. An empty place has the key 0 and the row number 0, which means no row.
      width: number of keys per line.
      count: number of keys.
    """

    line_of: np.ndarray
    lines: np.ndarray
    width: int
    count: int

    @staticmethod
    def of(keys):
        """int64[n], distinct keys, none 0 -> the KeyIndex in which the row of `keys[i]` is i + 1."""
        count = len(keys)
        buckets = 1 << max(count.bit_length() - 1, 0)
        line_of = np.zeros(buckets, np.int32 if count < (1 << 30) else np.int64)
        free = np.zeros(buckets, line_of.dtype)  # Per bucket: first its number of keys, later its next free place.
        fullest = _count(keys, free)
        width = fullest + fullest % 2  # An even width, so that int32 row numbers fill whole int64s.
        count_of_lines = _spread(free, line_of, width)
        lines = np.zeros((count_of_lines, width + width * line_of.itemsize // 8), np.int64)
        _place(keys, free, line_of, lines[:, :width], lines[:, width:].view(line_of.dtype))
        return KeyIndex(line_of, lines, width, count)

    @property
    def mask(self):
        """The bit mask whose bits of a key are the number of the key's bucket."""
        return len(self.line_of) - 1


@numba.njit(nogil=True, cache=True)
def _count(keys, counts):
    """Adds the number of keys in each bucket to `counts`. -> the number of keys in the fullest bucket, at least 1."""
    mask, most = len(counts) - 1, 1
    for key in keys:
        counts[key & mask] += 1
        most = max(most, counts[key & mask])
    return most


@numba.njit(nogil=True, cache=True)
def _spread(free, line_of, width):
    """Gives each bucket its line, and replaces its number of keys in `free` by its first place. -> number of lines."""
    line = taken = 0
    for bucket in range(len(free)):
        count = free[bucket]
        if taken + count > width:
            line, taken = line + 1, 0
        line_of[bucket], free[bucket] = line, taken
        taken += count
    return line + 1


@numba.njit(nogil=True, cache=True)
def _place(keys, free, line_of, keys_there, rows_there):
    mask = len(free) - 1
    for i in range(len(keys)):
        bucket = keys[i] & mask
        line, place = line_of[bucket], free[bucket]
        free[bucket] += 1
        keys_there[line, place], rows_there[line, place] = keys[i], i + 1


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
