"""Logistic regression."""

from ctr_trainer.layers.linear import linear
from ctr_trainer.models.head import binary_head


def model_fn(features, labels, mode, params):
    """`p = sigmoid(sum_f w_f + v . x + b)`: one weight per feature value.

    Advice: the baseline that a deeper model has to beat, and the fastest; crossed features are what it gains most
    by.

    Example:
      >>> spec = model_fn(features, None, "infer", ModelParams())
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013, section 3.
    """
    return binary_head(features, labels, mode, params, linear(features, bias=params.base_logit()))
