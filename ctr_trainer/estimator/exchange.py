"""The mean of the workers' gradients, by one reduction a step."""

import dataclasses
from typing import Any

import tensorflow as tf

from ctr_trainer import dense_exchange, distributed

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Mean:
    """What `weighted_mean` makes.

    Attributes:
      tensors: the means, in the order and the shapes given.
      weight: scalar float32, the examples' weights that they are the mean of.
      own_weight: scalar float32, the weights of this rank's examples in this step.
      accumulate: operation that only adds a micro-batch; None for one a step.
      kept: with `overlap`, operations that keep this step's sums for the next; else [].
      after: operations that have to run in a step that ends.
    """

    tensors: list
    weight: Any
    own_weight: Any
    accumulate: Any = None
    kept: list = dataclasses.field(default_factory=list)
    after: list = dataclasses.field(default_factory=list)


def weighted_mean(tensors, weight, batch_size, accumulation_steps=1, exchange=True, overlap=False, fp16=False):
    """Each tensor's mean over micro-batches k and ranks r, weighted by W, the sum of the examples' weights:

        mean = sum_rk W_rk t_rk / sum_rk W_rk, and 0 where all W are 0

    With gradients of a loss averaged over a batch's examples, that is the gradient of the loss averaged over all
    examples of all workers, however they are split. A batch of padding counts nothing.

    All tensors of a dtype travel as one vector, with W as its last element: the ranks meet once a step, and the weights
    need no reduction of their own. With float16 a W that is no multiple of 1/2048 of the batch is rounded.

    Staleness: with `overlap`, the means are those of the sums that the step before kept, so that their reduction waits
    for nothing in this step and goes on beside its forward and backward pass.

    Args:
      tensors: dense tensors of static shapes; on every rank the same ones, in the same order.
      weight: scalar float32, W of this batch.
      batch_size: examples that W is counted in, to keep what travels of the size of the tensors.
      accumulation_steps: micro-batches of a mean.
      exchange: whether over all ranks; else over this rank's micro-batches only.
      overlap: see above; only with an exchange.
      fp16: reduce in float16.

    Returns:
      a `Mean`. Without an exchange or accumulation these are the tensors themselves.
    """
    if not exchange and accumulation_steps == 1:
        return Mean(list(tensors), weight, weight)
    with tf.name_scope("dense_exchange"):
        return _weighted_mean(tensors, weight, batch_size, accumulation_steps, exchange, overlap, fp16)


def _weighted_mean(tensors, weight, batch_size, accumulation_steps, exchange, overlap, fp16):
    by_dtype = {tf.float32: []}  # Also without any tensor, for the weight.
    for index, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype.base_dtype, []).append(index)
    means, added, kept, after, weights, own_weights = [None] * len(tensors), [], [], [], [], []
    for dtype, indices in by_dtype.items():
        vector = _fused([tensors[index] for index in indices], dtype) * tf.cast(weight / batch_size, dtype)
        if accumulation_steps > 1:
            vector, add, clear = _accumulated(vector)
            added.append(add)
            after.append(clear)
        own_weights.append(tf.cast(vector[-1], tf.float32))
        if overlap:
            vector, keep = _of_step_before(vector)
            kept.append(keep)
        if exchange:
            vector = dense_exchange.sum_of_ranks(vector, f"dense_gradients.{dtype.name}", fp16, overlap)
        weights.append(tf.cast(vector[-1], tf.float32))
        parts = tf.split(vector * tf.math.reciprocal_no_nan(vector[-1]), _sizes(tensors, indices) + [1])
        for index, part in zip(indices, parts, strict=False):
            means[index] = tf.reshape(part, tensors[index].shape)
    accumulate = tf.group(*added) if added else None
    return Mean(means, weights[0] * batch_size, own_weights[0] * batch_size, accumulate, kept, after)


def average_of_ranks(variables, name):
    """-> operation that sets float variables to their mean over the ranks. A collective.

    Args:
      name: of the reduction, the same on every rank.
    """
    with tf.name_scope("dense_exchange"):
        return _average_of_ranks(variables, name)


def _average_of_ranks(variables, name):
    by_dtype = {}
    for variable in variables:
        by_dtype.setdefault(variable.dtype.base_dtype, []).append(variable)
    assigned = []
    for dtype, group in by_dtype.items():
        values = [variable.read_value() for variable in group]
        vector = tf.concat([tf.reshape(value, [-1]) for value in values], 0)
        vector = dense_exchange.sum_of_ranks(vector, f"{name}.{dtype.name}") / distributed.size()
        for variable, part in zip(group, tf.split(vector, _sizes(values, range(len(values)))), strict=True):
            assigned.append(variable.assign(tf.reshape(part, variable.shape), read_value=False))
    return tf.group(*assigned)


def _fused(tensors, dtype):
    """-> all elements, and a 1 behind them that becomes the weight by the one multiplication that all others need."""
    return tf.concat([*(tf.reshape(tensor, [-1]) for tensor in tensors), tf.ones([1], dtype)], 0)


def _accumulated(vector):
    """-> (the sum over the step's micro-batches, operation that adds this one, operation that starts anew)."""
    total = _local_zeros("accumulated", vector)
    add = total.assign_add(vector, read_value=False)
    with tf.control_dependencies([add]):
        value = total.read_value()
    with tf.control_dependencies([value]):
        return value, add, total.assign(tf.zeros_like(vector), read_value=False)


def _of_step_before(vector):
    """-> (what the step before kept, operation that keeps this step's)."""
    kept = _local_zeros("kept", vector)
    value = kept.read_value()
    with tf.control_dependencies([value]):
        return value, kept.assign(vector, read_value=False)


def _local_zeros(name, like):
    """-> a variable of this rank's own, in no checkpoint."""
    return tf1.get_variable(
        f"{name}/{like.dtype.name}",
        like.shape,
        like.dtype,
        tf1.zeros_initializer(),
        trainable=False,
        collections=[tf1.GraphKeys.LOCAL_VARIABLES],
    )


def _sizes(tensors, indices):
    return [tensors[index].shape.num_elements() for index in indices]
