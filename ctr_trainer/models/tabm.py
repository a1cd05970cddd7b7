"""TabM: an ensemble of deep networks that share their matrices, trained and served as one model."""

import dataclasses

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import batch_ensemble, dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import logit_of_mean, mean_of_losses


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of TabM.

    Attributes:
      members: number of networks in the ensemble.
    """

    members: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "members")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = mean_k sigmoid(w_k x_k + b_k)`, with x_k the member k of `layers.mlp.batch_ensemble` over all features.

        loss = mean_k cross entropy(label, sigmoid(w_k x_k + b_k))

    Each member learns from its own prediction, so that the members stay different; only their mean is served.

    Advice: for data of few rows and many numbers, where trees are strong. The layers cost `members` times as much as
    those of a deep network of the same `hidden_units`. `batch_norm` has no effect.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(members=4))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Gorishniy et al., TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling, ICLR 2025,
    section 3, without its embeddings of numbers.
    """
    x = batch_ensemble(
        tf.concat(flat_inputs(features), 1),
        params.hidden_units,
        params.members,
        dropout=params.dropout,
        training=mode == ModeKeys.TRAIN,
        activation=params.activation,
    )
    bias = params.base_logit()
    streams = [dense(x[:, member], 1, f"logits_{member}", bias=bias) for member in range(params.members)]
    logits = logit_of_mean(streams)
    return binary_head(features, labels, mode, params, logits, mean_of_losses(logits, streams))
