"""QNN-alpha: layers of quadratic neurons, whose two predictions under dropout learn from their mean."""

import dataclasses

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import dropped, logit_of_mean, normed, self_distillation
from ctr_trainer.settings.setting import setting


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of QNN-alpha."""

    cross_layers: int = setting(3, "quadratic layers; each doubles the degree of the interactions", minimum=1)
    rows: int = setting(2, "linear maps per layer", minimum=1)


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(w q_n(... q_1(h)) + b)`, with q `quadratic` and h all features side by side.

        loss = cross entropy(label, m) + cross entropy(m, p_1) + cross entropy(m, p_2),  m = (p_1 + p_2) / 2

    p_1 and p_2 are two predictions of one example under different dropout; the second and third term give no gradient
    to m. Without dropout the two are equal, and training has the first term only.

    Advice: give it a dropout of 0.1 to 0.3 and `batch_norm`; `hidden_units` and `activation` have no effect.

    Source: Li et al., Revisiting Feature Interactions from the Perspective of Quadratic Neural Networks for
    Click-through Rate Prediction, KDD 2025; the authors' QNN_T26 with one head.
    """
    x = tf.concat(flat_inputs(features), 1)
    twice = params.dropout > 0 and mode == ModeKeys.TRAIN
    if twice:
        x = tf.concat([x, x], 0)
    for index in range(params.cross_layers):
        x = dropped(quadratic(x, mode, params, copies=1 + twice, name=f"layer_{index}"), mode, params)
    logits = dense(x, 1, "logits", bias=params.base_logit())
    if not twice:
        return binary_head(features, labels, mode, params, logits)
    streams = tf.split(logits, 2, 0)
    mean = logit_of_mean(streams)
    return binary_head(features, labels, mode, params, mean, self_distillation(features, mode, mean, streams))


def quadratic(inputs: tf.Tensor, mode: str, params: Params, copies: int = 1, name: str = "quadratic") -> tf.Tensor:
    """Computes `x * sum_r relu(norm(W_r x + b_r)) + x` of x, float32[B, n]; each W_r is float32[n, n].

    This is the Khatri-Rao product of x and its maps, summed over the `params.rows` maps. norm is batch normalization
    with `params.batch_norm`, else nothing; the rectified maps have the dropout of the params. x repeats the batch's
    examples `copies` times.
    """
    width = inputs.shape.as_list()[1]
    hidden = normed(dense(inputs, params.rows * width, name), mode, params, f"{name}_norm", copies)
    hidden = dropped(tf.nn.relu(hidden), mode, params)
    return inputs * tf.reduce_sum(tf.reshape(hidden, [-1, params.rows, width]), 1) + inputs
