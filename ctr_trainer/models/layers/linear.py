"""The first-order term of a click model."""

from collections.abc import Mapping

import tensorflow as tf

from ctr_trainer.features.tensors import LINEAR, Features
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.weights import zeros


def linear(features: Mapping[str, tf.Tensor], bias: float = 0.0) -> tf.Tensor:
    """Computes `sum_f w_f + v . x + b`, float32[B, 1]: a weight per sparse value and per dense feature, and a bias.

    All weights except b are 0 before training. A random v would add noise of the size of x to each logit, and a
    training on small data would end before the model has unlearned it.

    `features` have `linear`, float32[B, F, 1], and `dense`, float32[B, n]; one of them may be missing. `bias` is the
    initial value of b, such as `ModelParams.base_logit()`.
    """
    if "linear" not in features:
        return dense(features["dense"], 1, LINEAR, zeros, bias)
    ranked = features.ranked(LINEAR) if isinstance(features, Features) else None
    sparse = tf.reduce_sum(features["linear"], 1) if ranked is None else ranked.sums()
    if "dense" in features:
        return sparse + dense(features["dense"], 1, LINEAR, zeros, bias)
    initializer = tf.compat.v1.constant_initializer(bias)
    return sparse + tf.compat.v1.get_variable(f"{LINEAR}/bias", [1], initializer=initializer)
