"""Logistic regression."""

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.params import ModelParams


def model_fn(features: Features, labels: Labels, mode: str, params: ModelParams) -> EstimatorSpec:
    """`p = sigmoid(sum_f w_f + v . x + b)`: one weight per feature value.

    Advice: the baseline that a deeper model has to beat, and the fastest; it gains most by crossed features.

    Source: McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013, section 3.
    """
    return binary_head(features, labels, mode, params, linear(features, bias=params.base_logit()))
