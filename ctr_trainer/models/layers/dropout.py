"""Dropout whose masks a resumed run draws again."""

import hashlib

import tensorflow as tf

from ctr_trainer.ranks.notices import Placement

tf1 = tf.compat.v1
_MOST_STEPS = 1 << 40
_MICRO_BATCH = "micro_batch"


def dropout(inputs: tf.Tensor, rate: float) -> tf.Tensor:
    """Sets a random share of the inputs to zero, and divides the others by `1 - rate`.

    The mask is a pure function of the seed of the graph, the global step, the micro-batch within the step, the rank and
    the layer. So a run that was interrupted and resumes draws the same masks as an uninterrupted run, and no two steps,
    workers or layers have the same masks.

    `rate` is at least 0 and below 1; 0 returns the inputs, a float tensor of any shape.

    Caveat: the masks repeat if no operation of the graph increments the global step, which is created if it is missing.

    Source: Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting, JMLR 2014.
    """
    if not rate:
        return inputs
    graph = tf1.get_default_graph()
    whose = f"{graph.seed} {Placement.of_this_process().rank} {graph.unique_name('dropout')}"
    layer = int.from_bytes(hashlib.sha256(whose.encode()).digest()[:8], "little", signed=True)
    with tf1.variable_scope(tf1.VariableScope(tf1.AUTO_REUSE), auxiliary_name_scope=False):  # Not within a layer's.
        step = tf.cast(tf1.train.get_or_create_global_step(), tf.int64)
    when = step + _MOST_STEPS * micro_batch()
    return tf.nn.experimental.stateless_dropout(inputs, rate, [layer, when], rng_alg="philox")


def micro_batch() -> tf.Tensor:
    """Returns the scalar int64 tensor that steps of several micro-batches feed with the number of each; else 0."""
    graph = tf1.get_default_graph()
    try:
        return graph.get_tensor_by_name(f"{_MICRO_BATCH}:0")
    except KeyError:
        with tf1.name_scope(None), tf.control_dependencies(None):
            return tf1.placeholder_with_default(tf.constant(0, tf.int64), [], _MICRO_BATCH)
