"""GDCN: a cross network whose layers have gates, below or next to a deep network."""

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.dcn_v2 import CrossParams as Params
from ctr_trainer.models.dcn_v2 import with_deep
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.weights import glorot

__all__ = ["Params", "model_fn"]
tf1 = tf.compat.v1


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(w mlp(c(x_0)) + b)` stacked (GDCN-S), `sigmoid(w [c(x_0), mlp(x_0)] + b)` parallel (GDCN-P).

    c is `gated_cross`.

    Advice: take it where DCN-v2 gets worse with a third or fourth cross layer.

    Source: Wang et al., Towards Deeper, Lighter and Interpretable Cross Network for CTR Prediction, CIKM
    2023; FuxiCTR's GDCNP and GDCNS. The field-level reduction of dimensions of that paper is left out.
    """
    inputs = flat_inputs(features)
    crossed = gated_cross(tf.concat(inputs, 1), params.cross_layers)
    return with_deep(features, labels, mode, params, inputs, crossed)


def gated_cross(inputs: tf.Tensor, layers: int) -> tf.Tensor:
    """Crosses x_0, float32[B, n], with itself, with a gate that filters each layer's interactions.

        x_{l+1} = x_0 * (W_l x_l + b_l) * sigmoid(V_l x_l) + x_l

    b_l starts at 0; in the FuxiCTR implementation it starts at uniform random numbers in [0, 1).
    """
    width, x = inputs.shape.as_list()[1], inputs
    with tf1.variable_scope("gated_cross"):
        for index in range(layers):
            with tf1.variable_scope(f"layer_{index}"):
                gate = tf.sigmoid(tf.matmul(x, glorot("gate", [width, width], width, width)))
                x = inputs * dense(x, width, "w") * gate + x
    return x
