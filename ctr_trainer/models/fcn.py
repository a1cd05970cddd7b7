"""FCN: two cross networks, one whose degree doubles with each layer and one whose degree grows by one."""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, LossOf, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.normalization import layer_norm
from ctr_trainer.models.layers.weights import glorot, seed_of
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import dropped, normed
from ctr_trainer.settings.setting import setting

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of FCN."""

    exponential_layers: int = setting(3, "layers of the network whose degree doubles with each", minimum=1)
    linear_layers: int = setting(3, "layers of the network whose degree grows by one with each", minimum=1)
    layer_norm: bool = setting(True, "whether the second half of each layer is a layer norm of the first, or scales it")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid((z_1 + z_2) / 2)`, `z_k = w_k masked_cross_k(h) + b_k`, with h all features side by side.

        loss = L(p) + sum_k max(0, L(p_k) - L(p)) L(p_k),   L the cross entropy of the label

    Advice: give it a dropout of 0.1, and try `batch_norm` with `layer_norm=false`, as the authors do on most data. No
    deep network is missing; `hidden_units` and `activation` have no effect.

    Source: Li et al., FCN: Fusing Exponential and Linear Cross Network for Click-Through Rate Prediction, arXiv
    2407.13349, 2024; the authors' FCNv1 with one head.
    """
    x = tf.concat(flat_inputs(features), 1)
    streams = []
    for name, layers in (("exponential", params.exponential_layers), ("linear", params.linear_layers)):
        crossed = masked_cross(x, layers, mode, params, exponential=name == "exponential", name=name)
        streams.append(dense(crossed, 1, f"{name}_logits", bias=params.base_logit()))
    logits = tf.add_n(streams) / 2
    return binary_head(features, labels, mode, params, logits, tri_bce(logits, streams))


def masked_cross(
    inputs: tf.Tensor, layers: int, mode: str, params: Params, exponential: bool, name: str = "masked_cross"
) -> tf.Tensor:
    """Crosses with c and a normalized copy of c, which halves the matrices; columns alternate between c and the copy.

        c_l = W_l x_l,   m_l = gamma_l * c_l + beta_l,   x_{l+1} = x_0 * (norm([c_l, m_l]) + b_l) + x_l

    `inputs` is x_0, float32[B, n], and W_l is float32[n, n / 2]. With `exponential`, x_l replaces x_0, so that each
    layer doubles the degree of the interactions; otherwise each layer increases the degree by one. With
    `layer_norm`, m_l is the layer norm of c_l. With `batch_norm`, norm is batch normalization with one
    mean and one variance of all columns, else nothing. b_l starts at uniform random numbers in [0, 1).
    """
    width, x = inputs.shape.as_list()[1], inputs
    half = (width + 1) // 2
    with tf1.variable_scope(name):
        for index in range(layers):
            with tf1.variable_scope(f"layer_{index}"):
                c = tf.matmul(x, glorot("kernel", [width, half], width, half))
                if params.layer_norm:
                    copy = layer_norm(c)
                else:
                    gamma = tf1.get_variable("gamma", [half], initializer=tf1.ones_initializer())
                    copy = gamma * c + tf1.get_variable("beta", [half], initializer=tf1.zeros_initializer())
                both = tf.reshape(tf.stack([c, copy], 2), [-1, 2 * half])[:, :width]
                if params.batch_norm:
                    by_column = tf.reshape(tf.transpose(both), [-1, 1])
                    by_column = normed(by_column, mode, params, "batch_norm", copies=width)
                    both = tf.transpose(tf.reshape(by_column, [width, -1]))
                uniform = tf1.random_uniform_initializer(0.0, 1.0, seed=seed_of("bias"))
                both += tf1.get_variable("bias", [width], initializer=uniform)
                x = dropped((x if exponential else inputs) * both + x, mode, params)
    return x


def tri_bce(logits: tf.Tensor, streams: Sequence[tf.Tensor]) -> Callable[[LossOf], tf.Tensor]:
    """Makes the extra loss `sum_k w_k loss(z_k)` with `w_k = max(0, loss(z_k) - loss(z))`: the Tri-BCE loss.

    A stream z_k, float32[B, 1], with a larger loss than the model's logits z is thereby also trained on its own.
    Gradients also flow through the weights w_k, as in the authors' code.
    """

    def extra(loss_of: LossOf) -> tf.Tensor:
        whole, parts = loss_of(logits), [loss_of(z) for z in streams]
        return tf.add_n([part * tf.nn.relu(part - whole) for part in parts])

    return extra
