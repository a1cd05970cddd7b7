"""xDeepFM: a compressed interaction network next to a linear model and a deep network."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import field_embeddings, flat_inputs
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.weights import glorot
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower
from ctr_trainer.settings.setting import setting

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of xDeepFM."""

    cin_units: tuple[int, ...] = setting(
        (64, 64), "feature maps of each layer of the compressed interaction network", minimum=1, fewest=1
    )


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(linear + w_cin cin(e) + w_mlp mlp([e_1, ..., e_F, x]) + b)`.

    Advice: it costs several times DeepFM; keep `cin_units` small.

    Source: Lian et al., xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems, KDD
    2018, section 3.
    """
    interactions = cin(field_embeddings(features, "xdeepfm"), params.cin_units)
    deep = tower(flat_inputs(features), mode, params)
    logits = linear(features, bias=params.base_logit()) + dense([interactions, deep], 1, "logits")
    return binary_head(features, labels, mode, params, logits)


def cin(embeddings: tf.Tensor, layer_sizes: Sequence[int]) -> tf.Tensor:
    """Computes interactions of growing degree between vectors, and sums each layer's feature maps over the dims.

        X^k_h = sum_i sum_j W^kh_ij (X^{k-1}_i * X^0_j),    p^k_h = sum_d X^k_hd

    `embeddings` is X^0, float32[B, F, dim]. The result is p^1, p^2, ... concatenated, float32[B, sum(layer_sizes)]. The
    time grows with F and with the product of the sizes of consecutive layers.

    Source: equations 6 and 7; with the identity as activation, which section 4 of the paper finds best.
    """
    _, fields, dim = embeddings.shape.as_list()
    first = tf.reshape(tf.transpose(embeddings, [0, 2, 1]), [-1, fields])
    maps, pooled = first, []
    with tf1.variable_scope("cin"):
        for index, size in enumerate(layer_sizes):
            pairs = maps.shape.as_list()[1] * fields
            kernel = glorot(f"kernel_{index}", [pairs, size], pairs, size)
            products = tf.einsum("nh,nf->nhf", maps, first)
            maps = tf.matmul(tf.reshape(products, [-1, pairs]), kernel)
            pooled.append(tf.reduce_sum(tf.reshape(maps, [-1, dim, size]), 1))
    return tf.concat(pooled, 1)
