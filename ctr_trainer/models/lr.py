"""Logistic regression."""

from ctr_trainer.layers.linear import linear
from ctr_trainer.models.head import binary_head


def model_fn(features, labels, mode, params):
    """`p = sigmoid(sum_f w_f + v . x + b)`: one weight per feature value.

    Source: McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013, section 3.
    """
    return binary_head(features, labels, mode, params, linear(features))
