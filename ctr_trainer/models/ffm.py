"""Field-aware factorization machine: a feature has one vector for each other field."""

from collections.abc import Callable

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import field_embeddings
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.params import ModelParams
from ctr_trainer.system.messages.errors import UserError


def model_fn(features: Features, labels: Labels, mode: str, params: ModelParams) -> EstimatorSpec:
    """`p = sigmoid(linear + sum_{i<j} <v_{i,j}, v_{j,i}>)`; dense features have first-order terms only.

    A feature's embedding holds its F vectors of width k one after another, so that with F sparse features
    `embedding_dim` must be F * k.

    Advice: for few fields, and a small k of 2 to 4: rows are F times as wide as for `fm`.

    Source: Juan et al., Field-aware Factorization Machines for CTR Prediction, RecSys 2016, section 3.
    """
    embeddings = field_embeddings(features, "ffm")
    _, count, dim = embeddings.shape.as_list()
    if dim % count:
        raise UserError(
            f"model ffm cuts an embedding into a vector for each of the {count} sparse features, and {count} does "
            f"not divide {dim} floats: give embedding_dim={count} times the width of a vector, as {4 * count}"
        )
    logits = linear(features, bias=params.base_logit()) + ffm(tf.reshape(embeddings, [-1, count, count, dim // count]))
    return binary_head(features, labels, mode, params, logits)


@tf.custom_gradient
def ffm(vectors: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Computes `sum_{i<j} <v_{i,j}, v_{j,i}>`, float32[B, 1], of v, float32[B, F, F, k].

    v_ij is the vector of field i's feature for field j. The gradient is `d/dv_ij = v_ji`, and 0 for i = j.
    """
    count = vectors.shape.as_list()[1]
    others = (1.0 - tf.eye(count))[:, :, None]
    mirrored = tf.transpose(vectors, [0, 2, 1, 3]) * others
    return 0.5 * tf.reduce_sum(vectors * mirrored, [1, 2, 3])[:, None], lambda g: mirrored * g[..., None, None]
