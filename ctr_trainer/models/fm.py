"""Factorization machine: one weight per feature value and one dot product per pair of features."""

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.interactions import fm_of_fields
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.params import ModelParams


def model_fn(features: Features, labels: Labels, mode: str, params: ModelParams) -> EstimatorSpec:
    """`p = sigmoid(linear + sum_{i<j} <v_i, v_j>)`; dense features have first-order terms only.

    Advice: a strong and fast baseline for sparse features alone.

    Source: Rendle, Factorization Machines, ICDM 2010, equation 1.
    """
    logits = linear(features, bias=params.base_logit()) + fm_of_fields(features, "fm")
    return binary_head(features, labels, mode, params, logits)
