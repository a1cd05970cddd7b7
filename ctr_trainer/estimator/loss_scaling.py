"""Loss scaling, for a training whose gradients are computed in float16.

Of float16 the smallest numbers are near 6e-8, below which gradients vanish. So the loss is multiplied by a scale, and
the gradients are divided by it. The scale halves where a gradient is not finite, and that step is left out; after 2,000
steps in a row it doubles.

Source: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2; as
`tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer` does it.
"""

import tensorflow as tf

tf1 = tf.compat.v1
_KEY = ("ctr_trainer", "loss scaling")  # No string, so that TensorFlow does not try to serialize what is under it.


def ask():
    """Has the current graph's training scale its loss."""
    tf1.add_to_collection(_KEY, True)


def is_asked():
    """-> whether the current graph's training is to scale its loss."""
    return bool(tf1.get_collection(_KEY))


def scaled(optimizer):
    """-> the `tf.compat.v1.train.Optimizer`, around which the loss is scaled if the current graph asks for it.

    Its `apply_gradients` leaves a step out where a gradient is not finite: on all workers alike, since a sum that one
    of them made so is so on all.
    """
    if not is_asked():
        return optimizer
    return tf1.mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, "dynamic")


def without_overflow(gradients):
    """-> the gradients of a batch's rows, by name; all 0 where one of them is not finite and the loss is scaled."""
    if not is_asked() or not gradients:
        return gradients
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients.values()])
    factor = tf.cast(finite, tf.float32)
    return {name: tf.math.multiply_no_nan(gradient, factor) for name, gradient in gradients.items()}
