"""WuKong: a stack of layers that join factorization machines with linear maps of vectors."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import all_field_embeddings, flat
from ctr_trainer.models.layers.mlp import dense, mlp
from ctr_trainer.models.layers.normalization import layer_norm
from ctr_trainer.models.layers.weights import glorot
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower
from ctr_trainer.settings.setting import setting


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of WuKong."""

    interaction_layers: int = setting(2, "layers; each doubles the degree of the interactions", minimum=1)
    products: int = setting(8, "vectors per layer that are made of products", minimum=1)
    combinations: int = setting(8, "vectors per layer that are linear combinations", minimum=1)
    rank: int = setting(8, "products that each vector takes part in, after compression", minimum=1)
    product_units: tuple[int, ...] = setting(
        (64,), "widths of the hidden layers behind the products", minimum=1, fewest=1
    )
    layer_norm: bool = setting(
        False, "whether the products and the outputs of each layer are normalised, as in the paper"
    )


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp(X_n))`, `X_{l+1} = wukong_layer(X_l)`, X_0 the vectors of all features.

    Advice: scale it by layers, vectors and rank together; try `layer_norm=true` with more than three layers.

    Source: Zhang et al., Wukong: Towards a Scaling Law for Large-Scale Recommendation, ICML 2024. A dense feature has a
    learned vector that its value multiplies; in the paper a network makes vectors of all dense features. The paper has
    layer normalization; it is an option here, because on MovieLens, which has many rare ids, predictions are better
    without it: it scales the short vector of a rare id, which is mostly noise, to the length of the others.
    """
    vectors = all_field_embeddings(features, "wukong")
    for index in range(params.interaction_layers):
        vectors = wukong_layer(
            vectors,
            products=params.products,
            combinations=params.combinations,
            rank=params.rank,
            hidden_units=params.product_units,
            normalize=params.layer_norm,
            name=f"layer_{index}",
        )
    logits = dense(tower(flat(vectors), mode, params), 1, "logits", bias=params.base_logit())
    return binary_head(features, labels, mode, params, logits)


def wukong_layer(
    inputs: tf.Tensor,
    products: int,
    combinations: int,
    rank: int,
    hidden_units: Sequence[int],
    normalize: bool = False,
    name: str = "wukong",
) -> tf.Tensor:
    """Computes new vectors from pairwise products and from linear combinations; each layer doubles the degree.

        Y = norm([F; L] + R X),   F = mlp(norm(X X' P)) W + b,   L = C X

    `inputs` is X, float32[B, n, dim]; Y is float32[B, products + combinations, dim]. X X' P are the dot products of all
    pairs of vectors, compressed with P, float32[n, rank]; X' P is computed first. R is the identity if the numbers of
    new and old vectors are equal. norm is layer normalization of each vector, as in FuxiCTR, if `normalize` is true.
    """
    _, count, dim = inputs.shape.as_list()
    with tf.compat.v1.variable_scope(name):
        compressed = _combined(inputs, rank, "projection")
        pairs = tf.reshape(tf.matmul(inputs, compressed, transpose_b=True), [-1, count * rank])
        hidden = mlp(layer_norm(pairs, name="pairs_norm") if normalize else pairs, hidden_units)
        of_products = tf.reshape(dense(hidden, products * dim, "products"), [-1, products, dim])
        both = tf.concat([of_products, _combined(inputs, combinations, "combinations")], 1)
        residual = inputs if count == products + combinations else _combined(inputs, both.shape[1], "residual")
        return layer_norm(both + residual) if normalize else both + residual


def _combined(inputs: tf.Tensor, count: int, name: str) -> tf.Tensor:
    """Returns float32[B, count, dim], linear combinations of float32[B, n, dim]."""
    kernel = glorot(name, [inputs.shape.as_list()[1], count], inputs.shape.as_list()[1], count)
    return tf.einsum("bnd,nk->bkd", inputs, kernel)
