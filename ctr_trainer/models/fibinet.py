"""FiBiNET: bilinear interactions of the embeddings, and of the embeddings weighted by importance."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import field_embeddings
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.weights import glorot
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower
from ctr_trainer.settings.setting import setting

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of FiBiNET."""

    bilinear: str = setting(
        "each",
        "number of matrices: one for all pairs of fields, one for each left field, or one for each pair",
        choices=("all", "each", "interaction"),
    )
    senet_reduction: int = setting(3, "fields per unit of the squeeze layer", minimum=1)


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(linear + mlp([bilinear(e), bilinear(senet(e)), x]))`.

    Advice: begin with `bilinear=each`; `interaction` has about F / 2 times the matrices, for few fields and much data.

    Source: Huang et al., FiBiNET: Combining Feature Importance and Bilinear Feature Interaction for Click-Through Rate
    Prediction, RecSys 2019, section 3.
    """
    embeddings = field_embeddings(features, "fibinet", fields=2)
    weighted = senet(embeddings, params.senet_reduction)
    inputs = [bilinear(embeddings, params.bilinear), bilinear(weighted, params.bilinear, "bilinear_senet")]
    if "dense" in features:
        inputs.append(features["dense"])
    logits = linear(features, bias=params.base_logit()) + dense(tower(inputs, mode, params), 1, "logits")
    return binary_head(features, labels, mode, params, logits)


def senet(embeddings: tf.Tensor, reduction: int = 3) -> tf.Tensor:
    """Multiplies each field's vector by a weight that is computed from the means of all fields: the SENET layer.

        z_f = mean_d e_fd,    a = relu(W_2 relu(W_1 z)),    v_f = a_f e_f

    `embeddings` and the result are float32[B, F, dim]. The hidden layer has F / reduction units, at least one.
    """
    count = embeddings.shape.as_list()[1]
    reduced = max(1, count // reduction)
    with tf1.variable_scope("senet"):
        hidden = tf.nn.relu(tf.matmul(tf.reduce_mean(embeddings, 2), glorot("w1", [count, reduced], count, reduced)))
        weights = tf.nn.relu(tf.matmul(hidden, glorot("w2", [reduced, count], reduced, count)))
    return embeddings * weights[:, :, None]


def bilinear(embeddings: tf.Tensor, kind: str = "all", name: str = "bilinear") -> tf.Tensor:
    """Computes `p_ij = (v_i W) * v_j` for all pairs of fields i < j: the bilinear-interaction layer.

    `embeddings` is v, float32[B, F, dim]; the result is float32[B, F (F - 1) / 2 * dim]. `kind` is `all`, one W for all
    pairs; `each`, a W_i for each left field i; or `interaction`, a W_ij for each pair.
    """
    _, count, dim = embeddings.shape.as_list()
    with tf1.variable_scope(name):
        if kind == "interaction":
            products = _by_pair(embeddings)
        else:
            left = _shared(embeddings) if kind == "all" else _by_field(embeddings)
            products = pair_products(left, embeddings)
    return tf.reshape(products, [-1, count * (count - 1) // 2 * dim])


def _shared(embeddings: tf.Tensor) -> tf.Tensor:
    _, count, dim = embeddings.shape.as_list()
    kernel = glorot("kernel", [dim, dim], dim, dim)
    return tf.reshape(tf.matmul(tf.reshape(embeddings, [-1, dim]), kernel), [-1, count, dim])


def _by_field(embeddings: tf.Tensor) -> tf.Tensor:
    _, count, dim = embeddings.shape.as_list()
    kernels = tf.unstack(glorot("kernel", [count - 1, dim, dim], dim, dim))
    *others, last = tf.unstack(embeddings, axis=1)  # The last field is not the left one of any pair.
    return tf.stack([*(tf.matmul(x, kernel) for x, kernel in zip(others, kernels, strict=True)), last], 1)


def _by_pair(embeddings: tf.Tensor) -> tf.Tensor:
    _, count, dim = embeddings.shape.as_list()
    left = [
        tf.matmul(x, glorot(f"kernel_{i}", [dim, (count - 1 - i) * dim], dim, dim))
        for i, x in enumerate(tf.unstack(embeddings, axis=1)[:-1])
    ]
    left = tf.reshape(tf.concat(left, 1), [-1, count * (count - 1) // 2, dim])
    return left * pair_products(tf.ones_like(embeddings), embeddings)


@tf.custom_gradient
def pair_products(
    left: tf.Tensor, right: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
    """Computes left_i * right_j, float32[B, F (F - 1) / 2, dim], of all pairs i < j of float32[B, F, dim].

    The gradient is explicit: that of the slices would create, for each slice, a tensor of zeros as large as the input.
    """
    count = left.shape.as_list()[1]
    products = tf.concat([left[:, i : i + 1] * right[:, i + 1 :] for i in range(count - 1)], 1)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        of_left: list[tf.Tensor] = []
        of_right, sums = [tf.zeros_like(left[:, :1])], tf.zeros_like(left[:, 1:])
        for i, part in enumerate(tf.split(upstream, list(range(count - 1, 0, -1)), 1)):
            of_left.append(tf.reduce_sum(part * right[:, i + 1 :], 1))
            sums += part * left[:, i : i + 1]
            of_right.append(sums[:, :1])  # No later part adds to the gradient of this field.
            sums = sums[:, 1:]
        of_left.append(tf.zeros_like(of_left[0]))
        return tf.stack(of_left, 1), tf.concat(of_right, 1)

    return products, gradient
