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
from ctr_trainer.models.layers.weights import glorot
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import dropped
from ctr_trainer.settings.setting import setting

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of FCN."""

    exponential_layers: int = setting(3, "layers of the network whose degree doubles with each", minimum=1)
    linear_layers: int = setting(3, "layers of the network whose degree grows by one with each", minimum=1)


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid((z_1 + z_2) / 2)`, `z_k = w_k masked_cross_k(h) + b_k`, with h all features side by side.

        loss = L(p) + sum_k max(0, L(p_k) - L(p)) L(p_k),   L the cross entropy of the label

    Advice: no deep network is missing; `hidden_units`, `activation` and `batch_norm` have no effect.

    Source: Li et al., FCN: Fusing Exponential and Linear Cross Network for Click-Through Rate Prediction, arXiv
    2407.13349, 2024, as in the authors' code with one head.
    """
    x = tf.concat(flat_inputs(features), 1)
    streams = []
    for name, layers in (("exponential", params.exponential_layers), ("linear", params.linear_layers)):
        crossed = masked_cross(x, layers, mode, params, exponential=name == "exponential", name=name)
        streams.append(dense(crossed, 1, f"{name}_logits", bias=params.base_logit()))
    logits = tf.add_n(streams) / 2
    return binary_head(features, labels, mode, params, logits, tri_bce(logits, streams))


def masked_cross(
    inputs: tf.Tensor, layers: int, mode: str, params: ModelParams, exponential: bool, name: str = "masked_cross"
) -> tf.Tensor:
    """Crosses with c and a masked copy of c, which halves the matrices; columns alternate between c and the copy.

        c_l = W_l x_l,   m_l = c_l * relu(layer norm(c_l)),   x_{l+1} = x_0 * ([c_l, m_l] + b_l) + x_l

    `inputs` is x_0, float32[B, n], and W_l is float32[n, n / 2]. With `exponential`, x_l replaces x_0, so that each
    layer doubles the degree of the interactions; otherwise each layer increases the degree by one. b_l starts at 0; in
    the authors' code it starts at uniform random numbers in [0, 1).
    """
    width, x = inputs.shape.as_list()[1], inputs
    half = (width + 1) // 2
    with tf1.variable_scope(name):
        for index in range(layers):
            with tf1.variable_scope(f"layer_{index}"):
                c = tf.matmul(x, glorot("kernel", [width, half], width, half))
                masked = c * tf.nn.relu(layer_norm(c))
                both = tf.reshape(tf.stack([c, masked], 2), [-1, 2 * half])[:, :width]
                bias = tf1.get_variable("bias", [width], initializer=tf1.zeros_initializer())
                x = (x if exponential else inputs) * (both + bias) + x
                x = dropped(x, mode, params)
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
