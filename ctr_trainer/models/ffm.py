"""Field-aware factorization machine: a feature has one vector for each other field."""

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import field_embeddings
from ctr_trainer.models.layers.interactions import ffm
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.params import ModelParams
from ctr_trainer.system.messages.errors import UserError


def model_fn(features: Features, labels: Labels, mode: str, params: ModelParams) -> EstimatorSpec:
    """`p = sigmoid(linear + sum_{i<j} <v_{i,j}, v_{j,i}>)`; dense features have first-order terms only.

    A feature's embedding holds its F vectors of width k one after another, so that with F sparse features
    `embedding_dim` must be F * k.

    Advice: for few fields: rows are F times as wide as for `fm`.

    Example:
      >>> spec = model_fn(features, None, "infer", ModelParams())
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

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
