"""The deep part of a model, built as the model's params say."""

from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.graph_notes.estimator_spec import ModeKeys
from ctr_trainer.layers.mlp import mlp
from ctr_trainer.models.params import ModelParams


def tower(
    inputs: Columns | Sequence[Columns],
    mode: str,
    params: ModelParams,
    hidden_units: Sequence[int] | None = None,
    name: str = "mlp",
) -> tf.Tensor:
    """Makes a `layers.mlp.mlp` with the dropout, activation and normalization of a model's params.

    Args:
      inputs: a float32[B, n_i], or a list of them that stands for their concatenation.
      mode: one of `ModeKeys`.
      params: `ModelParams`.
      hidden_units: widths of the layers; None for the `hidden_units` of `params`.
      name: name of the variable scope.

    Returns:
      float32[B, units of the last layer].
    """
    return mlp(
        inputs,
        hidden_units or params.hidden_units,
        params.dropout,
        training=mode == ModeKeys.TRAIN,
        activation=params.activation,
        batch_norm=params.batch_norm,
        momentum=params.batch_norm_momentum,
        epsilon=params.batch_norm_epsilon,
        name=name,
    )


def dropped(inputs: tf.Tensor, mode: str, params: ModelParams) -> tf.Tensor:
    """Sets the fraction `params.dropout` of the inputs to zero while training; otherwise returns the inputs."""
    return tf.nn.dropout(inputs, rate=params.dropout) if params.dropout and mode == ModeKeys.TRAIN else inputs
