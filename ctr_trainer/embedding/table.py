"""A table of embedding rows that grows as keys come."""

import contextlib

import numpy as np

from ctr_trainer.embedding import row_kernels
from ctr_trainer.embedding.index import Index
from ctr_trainer.embedding.memory import GrowableArray
from ctr_trainer.errors import UserError

_STEPS = {"sgd": row_kernels.sgd, "adagrad": row_kernels.adagrad, "rowwise_adagrad": row_kernels.rowwise_adagrad}

# Rows whose segments are stepped one after the other, few enough for the core's second-level cache to keep them.
_STEP_BLOCK = 2048


class Table:
    """Rows of `config.width` float32, found by 64-bit key.

    The rows lie in one array in slot order, the order of their creation, so a slot stays valid until `clear`.
    The key 0 stands for "no value": it has the slot -1 and never a row.

    A table serves a lone worker where several would each use a `Cache`.

    Caveat: not safe to use from several threads at a time. `keys` and `rows` are views, valid until a row is created.

    Attributes:
      lock: what a user of `rows` holds who may have a `Cache` in a table's place; here it locks nothing.
    """

    lock = contextlib.nullcontext()

    def __init__(self, config):
        """`config` is a TableConfig.

        Raises:
          UserError: Adagrad with an accumulator that starts at or below zero, which would divide by zero.
        """
        if config.optimizer == "adagrad" and not config.initial_accumulator > 0:
            raise UserError(
                f"table {config.name}: adagrad needs an initial_accumulator above 0, not {config.initial_accumulator}"
            )
        self.config = config
        self._index = Index()
        self._rows = GrowableArray(np.float32, (config.width,))
        self._dims = np.array(config.dims, np.int64)
        self._scales = np.array(config.init_scales, np.float32)
        self._seed = np.uint64(config.seed % 2**64)

    def __len__(self):
        return len(self._index)

    @property
    def keys(self):
        """int64[n], in slot order."""
        return self._index.keys

    @property
    def rows(self):
        """float32[n, width], in slot order."""
        return self._rows.array[: len(self._index)]

    @property
    def nbytes(self):
        """Bytes of the index and of the rows."""
        return self._index.nbytes + len(self) * self.config.width * 4

    def find(self, keys):
        """int64[U] -> int64[U] slots, -1 for unknown keys and for the key 0."""
        return self._index.find(_int64(keys))

    def find_or_create(self, keys):
        """int64[U] -> int64[U] slots; a row that is not there is created with its initial values.

        Raises:
          UserError: the memory is used up; the table is unchanged.
        """
        before = len(self)
        slots = self._find_or_add(keys)
        created = slice(before, len(self))
        self._initialize(self._index.keys[created], self._rows.array[created])
        return slots

    def initial_rows(self, keys):
        """int64[U] -> float32[U, width]: what new rows of these keys are, a pure function of (config.seed, key)."""
        rows = np.empty((len(keys), self.config.width), np.float32)
        self._initialize(_int64(keys), rows)
        return rows

    def read(self, keys, missing="initial"):
        """int64[U] -> float32[U, width], a copy; creates no row.

        Args:
          keys: int64[U].
          missing: what an unknown key reads: `initial`, its initial row, or `zeros`. The key 0 reads zeros.
        """
        if missing not in ("initial", "zeros"):
            raise ValueError(f"missing is 'initial' or 'zeros', not {missing!r}")
        slots = self.find(keys)
        rows = self.take(slots)
        unknown = np.flatnonzero(slots < 0)
        if missing == "initial" and len(unknown):
            rows[unknown] = self.initial_rows(keys[unknown])
        return rows

    def take(self, slots):
        """int64[U] -> float32[U, width], a copy; zeros where the slot is -1."""
        rows = np.empty((len(slots), self.config.width), np.float32)
        row_kernels.take(self._rows.array, slots, 0, rows)
        return rows

    def find_or_insert(self, keys, rows):
        """Sets the rows of `keys` to `rows` float32[U, width], creating those that are not there. -> int64[U] slots"""
        slots = self._find_or_add(keys)
        row_kernels.put(self._rows.array, slots, _float32(rows))
        return slots

    def add(self, keys, deltas):
        """Adds float32[U, width] to the rows of `keys`, first creating missing ones as they start. -> int64[U] slots"""
        slots = self.find_or_create(keys)
        row_kernels.add(self._rows.array, slots, _float32(deltas))
        return slots

    def apply_gradients(self, slots, gradients, learning_rate):
        """One optimizer step on each row.

        `adagrad` is TensorFlow's v1 AdagradOptimizer: acc += g * g, w -= lr * g / sqrt(acc), with no epsilon.
        `rowwise_adagrad` is FBGEMM's EXACT_ROWWISE_ADAGRAD: acc += mean(g * g), w -= lr * g / (sqrt(acc) + 1e-8), an
        accumulator a segment. `sgd` is w -= lr * g.

        Args:
          slots: int64[U], distinct; -1 is skipped.
          gradients: float32[U, dim], one for each segment, those of equal keys already summed.
          learning_rate: a float.
        """
        for dim, gradient in zip(self.config.dims, gradients, strict=True):
            if gradient.shape != (len(slots), dim):
                raise ValueError(f"gradient of shape {gradient.shape}, expected {(len(slots), dim)}")
        slots, gradients = _int64(slots), [_float32(gradient) for gradient in gradients]
        step = _STEPS[self.config.optimizer]
        for first in range(0, len(slots), _STEP_BLOCK):
            block = slice(first, first + _STEP_BLOCK)
            start, state = 0, self.config.weights
            for dim, gradient in zip(self.config.dims, gradients, strict=True):
                step(self._rows.array, slots[block], gradient[block], start, state, learning_rate)
                start += dim
                state += dim if self.config.optimizer == "adagrad" else 1

    def clear(self):
        """Forgets every row."""
        self._index.clear()

    def _find_or_add(self, keys):
        # Room for the rows first: where that fails, the index has not changed either.
        self._rows.reserve(len(self) + len(keys))
        return self._index.find_or_add(_int64(keys))

    def _initialize(self, keys, rows):
        row_kernels.initialize(rows, keys, self._seed, self._dims, self._scales, self.config.initial_accumulator)


def _int64(keys):
    return np.require(keys, np.int64, ("C", "A"))


def _float32(rows):
    return np.require(rows, np.float32, ("C", "A"))
