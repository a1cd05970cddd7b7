"""Inputs of a ranking request. Columns that all candidates share are multiplied by a kernel only once."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class RankedBlock:
    """F features of n candidates. C of the features belong to the context, which all candidates share.

    Attributes:
      context: float32[1, C, dim], the features of the context.
      candidates: float32[n, F - C, dim], the other features.
      columns: int32[F], the positions of the features among all F features: first the positions of the context's
        features, then those of the candidates' features.
      count: F.
      dim: width of a feature.
    """

    context: tf.Tensor
    candidates: tf.Tensor
    columns: tf.Tensor
    count: int
    dim: int

    def expanded(self) -> tf.Tensor:
        """Returns float32[n, F, dim], with the context's features repeated for each candidate."""
        shape = tf.concat([tf.shape(self.candidates)[:1], tf.shape(self.context)[1:]], 0)
        both = tf.concat([tf.broadcast_to(self.context, shape), self.candidates], 1)
        found = tf.gather(both, tf.math.invert_permutation(self.columns), axis=1)
        return tf.ensure_shape(found, [None, self.count, self.dim])

    def times(self, kernel: tf.Tensor) -> tf.Tensor:
        """Returns float32[n, units], the product of float32[n, F * dim] and a kernel float32[F * dim, units]."""
        # To avoid copying part of the kernel, the context has zeros in place of the candidates' features.
        units = kernel.shape.as_list()[1]
        split, rows = tf.shape(self.context)[1], tf.shape(self.candidates)[0]
        own = self.columns[split:]
        places = tf.scatter_nd(self.columns[:split, None], self.context[0], [self.count, self.dim])
        part = tf.gather(tf.reshape(kernel, [self.count, self.dim, units]), own)
        flat = [rows, tf.size(own) * self.dim]
        shared = tf.matmul(tf.reshape(places, [1, self.count * self.dim]), kernel)
        return shared + tf.matmul(tf.reshape(self.candidates, flat), tf.reshape(part, [flat[1], units]))


@dataclasses.dataclass(frozen=True)
class RankedColumns:
    """The float32[n, columns] inputs of a ranking request: the features of all blocks, concatenated.

    TensorFlow operations convert it to the expanded tensor.
    """

    blocks: tuple[RankedBlock, ...]

    @property
    def shape(self) -> tf.TensorShape:
        """The static shape, [None, columns]."""
        return tf.TensorShape([None, sum(block.count * block.dim for block in self.blocks)])

    def expanded(self) -> tf.Tensor:
        """Returns the tensor, float32[n, columns]."""
        return tf.concat([tf.reshape(block.expanded(), [-1, block.count * block.dim]) for block in self.blocks], 1)

    def context(self) -> tf.Tensor:
        """Returns float32[1, C, dim], the vectors that all candidates share. All features must have the same dim."""
        return tf.concat([block.context for block in self.blocks], 1)

    def candidates(self) -> tf.Tensor:
        """Returns float32[n, F - C, dim], the vectors of each candidate. All features must have the same dim."""
        return tf.concat([block.candidates for block in self.blocks], 1)

    def sums(self) -> tf.Tensor:
        """Returns float32[n, dim], the sum of all features' vectors. The context's vectors are summed only once."""
        return tf.reduce_sum(self.context(), 1) + tf.reduce_sum(self.candidates(), 1)

    def times(self, kernel: tf.Tensor) -> tf.Tensor:
        """Returns the product with a kernel float32[columns, units]. The context is multiplied only once."""
        widths = [block.count * block.dim for block in self.blocks]
        return sum(block.times(part) for block, part in zip(self.blocks, tf.split(kernel, widths), strict=True))


Columns: TypeAlias = tf.Tensor | RankedColumns


def product(values: Columns, kernel: tf.Tensor) -> tf.Tensor:
    """Returns the matrix product of float32[B, n] and float32[n, units]."""
    return values.times(kernel) if isinstance(values, RankedColumns) else tf.matmul(values, kernel)


def joined(inputs: Sequence[Columns]) -> Columns:
    """Concatenates the columns of all inputs to float32[B, n]."""
    ranked = [each for each in inputs if isinstance(each, RankedColumns)]
    if len(ranked) < len(inputs):
        return tf.concat(inputs, 1)
    return RankedColumns(tuple(block for each in ranked for block in each.blocks))


def _as_tensor(
    value: RankedColumns, dtype: tf.DType | None = None, name: str | None = None, as_ref: bool = False
) -> Any:
    if as_ref or (dtype is not None and not dtype.is_compatible_with(tf.float32)):
        return NotImplemented
    return value.expanded()


tf.register_tensor_conversion_function(RankedColumns, _as_tensor)
