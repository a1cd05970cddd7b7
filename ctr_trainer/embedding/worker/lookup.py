"""The distinct keys of one batch, and the conversion of their rows to tensors."""

from collections.abc import Sequence

import numpy as np

from ctr_trainer.embedding.index.key_kernels import DistinctKeys, kernel
from ctr_trainer.embedding.worker import lookup_kernels

_POWERS = {"sum": 0, "mean": 1, "sqrtn": 2}
_ALIGNMENT = 64
# The values, splits, combiner and weights of a bag, and the values, splits and length of a sequence, see `Lookup`.
Bag = tuple[np.ndarray, np.ndarray, str, np.ndarray | None]
KeySequence = tuple[np.ndarray, np.ndarray, int]


def coefficients(
    positions: np.ndarray, splits: np.ndarray, combiner: str, weights: np.ndarray | None = None
) -> np.ndarray:
    """Computes the coefficients c_i of a bag's values; the bag's vector is the sum of c_i times the row of value i.

        sum: c_i = w_i    mean: c_i = w_i / sum_i w_i    sqrtn: c_i = w_i / sqrt(sum_i w_i^2)

    The sums exclude keys that are 0. If a sum is 0, c_i is 0.

    Args:
      positions: int32[n]; negative for a key 0 ("no value").
      splits: int32[B + 1]; bag b has the positions[splits[b]:splits[b + 1]].
      weights: float32[n]; None for ones.

    Returns float32[n].

    Source: TensorFlow, embedding_lookup_sparse.
    """
    out = np.ones(len(positions), np.float32) if weights is None else np.array(weights, np.float32)
    if combiner not in _POWERS:
        raise ValueError(f"combiner {combiner!r} is not one of {', '.join(_POWERS)}")
    if _POWERS[combiner]:
        _normalise(positions, splits, _POWERS[combiner], out)
    return out


@kernel()
def _normalise(positions: np.ndarray, splits: np.ndarray, power: int, out: np.ndarray) -> None:
    for b in range(splits.size - 1):
        total = 0.0
        for i in range(splits[b], splits[b + 1]):
            if positions[i] >= 0:
                total += out[i] if power == 1 else out[i] * out[i]
        if power == 2:
            total = np.sqrt(total)
        scale = np.float32(1 / total) if total != 0.0 else np.float32(0)
        for i in range(splits[b], splits[b + 1]):
            out[i] *= scale


class Lookup:
    """The conversion of one batch's keys to its embedding tensors, and of the tensors' gradients to gradients of rows.

    The keys of single-valued features, bags and sequences are deduplicated together. So a table is probed once per
    distinct key, and an optimizer makes one step per distinct key.

    `unique`: int64[U], the distinct keys in order of first appearance, without the key 0 ("no value").
    """

    def __init__(self, keys: np.ndarray, bags: Sequence[Bag] = (), sequences: Sequence[KeySequence] = ()) -> None:
        """Deduplicates the keys.

        Args:
          keys: int64[B, F], the single-valued features; F may be 0.
          bags: list of (values int64[n], splits int32[B + 1], combiner, weights float32[n] or None), one per
            multi-valued feature. Example b has the keys values[splits[b]:splits[b + 1]]; see `coefficients`.
          sequences: list of (values int64[n], splits int32[B + 1], length), one per sequence feature.

        Raises ValueError if a shape or the splits are wrong, or an example has more than `length` values.
        """
        if keys.ndim != 2:
            raise ValueError(f"keys of shape {keys.shape}, expected [B, F]")
        self._examples, self._features = keys.shape
        self._columns = self._features + len(bags)
        found = DistinctKeys(
            keys.size + sum(len(bag[0]) for bag in bags) + sum(len(sequence[0]) for sequence in sequences)
        )
        self._positions = found.numbers(keys.reshape(-1))
        self._bags, self._sequences = [], []
        for column, (values, splits, combiner, weights) in enumerate(bags, start=self._features):
            splits = self._splits(f"column {column}", values, splits)
            positions = found.numbers(values)
            self._bags.append((positions, splits, coefficients(positions, splits, combiner, weights), column))
        for number, (values, splits, length) in enumerate(sequences):
            splits = self._splits(f"sequence {number}", values, splits)
            if len(values) and (longest := int(np.diff(splits).max())) > length:
                raise ValueError(f"sequence {number}: an example has {longest} values, above its length of {length}")
            self._sequences.append((found.numbers(values), splits, length))
        self.unique = found.keys

    def count(self, marked: np.ndarray) -> np.ndarray:
        """Returns int64[F, 2]: the number of `marked`, bool[U], keys and of all keys of each feature, bag and sequence.

        A key that occurs several times counts each time, and the key 0 does not count.
        """
        counts = np.zeros((self._columns + len(self._sequences), 2), np.int64)
        if self._features:
            lookup_kernels.count(marked, self._positions, self._features, counts[: self._features])
        lists = [bag[0] for bag in self._bags] + [sequence[0] for sequence in self._sequences]
        for place, positions in enumerate(lists, start=self._features):
            lookup_kernels.count(marked, positions, 1, counts[place : place + 1])
        return counts

    def gather(self, distinct: np.ndarray, start: int, dim: int) -> np.ndarray:
        """Makes the embedding tensor of the single-valued features and the bags, for one segment of the rows.

        Args:
          distinct: float32[U, columns], the weights of the distinct keys, see `WorkerRows.read`.
          start: the first column of the segment, which has `dim` columns.

        Returns float32[B, F + len(bags), dim], freshly allocated, C-contiguous and 64-byte aligned, so that TensorFlow
        feeds it without a copy. A bag's vector combines its non-zero keys; an empty bag has zeros.
        """
        out = _aligned_empty(self._examples * self._columns, dim)
        if self._features:
            lookup_kernels.spread(distinct, start, self._positions, self._features, self._columns, out)
        for positions, splits, shares, column in self._bags:
            lookup_kernels.pool(distinct, start, positions, splits, shares, column, self._columns, out)
        return out.reshape(self._examples, self._columns, dim)

    def add_fields(self, vectors: np.ndarray) -> np.ndarray:
        """Returns float32[B, dim + 1]: the sum of each example's vectors, and the sum of the squares of all values.

        `vectors` are the result of `gather`.
        """
        dim = vectors.shape[2]
        out = _aligned_empty(self._examples, dim + 1)
        lookup_kernels.add_fields(vectors.reshape(-1, dim), self._columns, out)
        return out

    def gather_sequence(self, number: int, distinct: np.ndarray, start: int, dim: int) -> np.ndarray:
        """Returns the tensor of sequence `number` for one segment of the rows; see `gather`.

        The tensor is float32[B, length, dim], allocated as in `gather`. The j-th value of an example is at index j, and
        zeros follow the last value.
        """
        length = self._sequences[number][2]
        out = _aligned_empty(self._examples * length, dim)
        lookup_kernels.spread(distinct, start, _padded(*self._sequences[number]), length, length, out)
        return out.reshape(self._examples, length, dim)

    def vectors(self, distinct: np.ndarray, start: int, dim: int) -> np.ndarray:
        """Returns the tensor of the distinct keys for one segment of the rows; see `gather`.

        The tensor is float32[U + 1, dim], allocated as in `gather`. The last vector, zeros, stands for "no value".
        """
        out = _aligned_empty(len(self.unique) + 1, dim)
        out[:-1], out[-1] = distinct[:, start : start + dim], 0
        return out

    def pairs(self, number: int) -> np.ndarray:
        """Returns int32[N, 2]: for each value of a sequence, its example and the index of its key in `vectors`."""
        positions, splits, _ = self._sequences[number]
        out = _aligned_empty(len(positions), 2).view(np.int32)
        out[:, 0] = np.repeat(np.arange(self._examples), np.diff(splits))
        out[:, 1] = np.where(positions >= 0, positions, len(self.unique))
        return out

    def sum_gradients(
        self,
        dim: int,
        gradient: np.ndarray | None = None,
        sequences: Sequence[np.ndarray | None] = (),
        vectors: np.ndarray | None = None,
        fields: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Returns float32[U, dim], the sum of the gradients of each distinct key; None stands for no gradient.

        Args:
          gradient: the gradient of the tensor of `gather`. Each key of a bag gets the bag's gradient times the key's
            coefficient.
          sequences: list, by the number of the sequence, of the gradients of the tensors of `gather_sequence`, or None.
          vectors: the gradient of the tensor of `vectors`.
          fields: the gradient of the tensor of `add_fields`, and the result of `gather` from which it was computed.
        """
        out = np.zeros((len(self.unique), dim), np.float32)
        shape = self._examples, self._columns, dim
        if gradient is not None or fields is not None:
            flat = _flat(np.zeros(shape, np.float32) if gradient is None else gradient, shape)
            of_features = self._positions, self._features, self._columns, out
            if fields is None:
                if self._features:
                    lookup_kernels.sum_spread(flat, *of_features)
                for positions, splits, shares, column in self._bags:
                    lookup_kernels.sum_pool(flat, positions, splits, shares, column, self._columns, out)
            else:
                sums, summed = _flat(fields[0], (self._examples, dim + 1)), _flat(fields[1], shape)
                if self._features:
                    lookup_kernels.sum_spread_fields(flat, sums, summed, *of_features)
                for positions, splits, shares, column in self._bags:
                    own = slice(column, None, self._columns)
                    of_bag = flat[own] + sums[:, :dim] + 2 * sums[:, dim:] * summed[own]
                    lookup_kernels.sum_pool(of_bag, positions, splits, shares, 0, 1, out)
        sequences = sequences or [None] * len(self._sequences)
        for (positions, splits, length), its_gradient in zip(self._sequences, sequences, strict=True):
            if its_gradient is not None:
                flat = _flat(its_gradient, (self._examples, length, dim))
                lookup_kernels.sum_spread(flat, _padded(positions, splits, length), length, length, out)
        if vectors is not None:
            out += _flat(vectors, (len(self.unique) + 1, dim))[:-1]
        return out

    def _splits(self, what: str, values: np.ndarray, splits: np.ndarray) -> np.ndarray:
        if len(splits) != self._examples + 1 or splits[0] != 0 or splits[-1] != len(values):
            raise ValueError(
                f"{what}: the splits do not cut {len(values)} values into {self._examples} examples; they are "
                f"{self._examples + 1} integers from 0 to {len(values)}"
            )
        return np.ascontiguousarray(splits, np.int32)


def _padded(positions: np.ndarray, splits: np.ndarray, length: int) -> np.ndarray:
    """Returns int32[B * length], the positions of a sequence; -1 follows the last value of each example."""
    padded = np.full((len(splits) - 1, length), -1, np.int32)
    padded[np.arange(length) < np.diff(splits)[:, None]] = positions
    return padded.reshape(-1)


def _flat(gradient: np.ndarray, expected: tuple[int, ...]) -> np.ndarray:
    """Returns the gradient as float32[rows, dim]; raises ValueError if its shape is not `expected`."""
    if gradient.shape != expected:
        raise ValueError(f"gradient of shape {gradient.shape}, expected {expected}")
    return np.ascontiguousarray(gradient, np.float32).reshape(-1, expected[-1])


def _aligned_empty(rows: int, dim: int) -> np.ndarray:
    # Not a reused buffer, because TensorFlow may still read it after the step; the allocator reuses the pages anyway.
    room = np.empty(rows * dim * 4 + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + rows * dim * 4].view(np.float32).reshape(rows, dim)
