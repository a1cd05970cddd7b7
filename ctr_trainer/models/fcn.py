"""FCN: two cross networks, one whose degree doubles with each layer and one whose degree grows by one."""

import dataclasses

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.cross import masked_cross
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tri_bce


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of FCN.

    Attributes:
      exponential_layers: layers of the network whose degree doubles with each.
      linear_layers: layers of the network whose degree grows by one with each.
    """

    exponential_layers: int = 3
    linear_layers: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "exponential_layers", "linear_layers")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid((z_1 + z_2) / 2)`, `z_k = w_k masked_cross_k(h) + b_k`, with h all features side by side.

        loss = L(p) + sum_k max(0, L(p_k) - L(p)) L(p_k),   L the cross entropy of the label

    Advice: no deep network is missing; `hidden_units`, `activation` and `batch_norm` have no effect.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(linear_layers=2))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Li et al., FCN: Fusing Exponential and Linear Cross Network for Click-Through Rate Prediction, arXiv
    2407.13349, 2024, as in the authors' code with one head.
    """
    x = tf.concat(flat_inputs(features), 1)
    rate = params.dropout if mode == ModeKeys.TRAIN else 0.0
    streams = []
    for name, layers in (("exponential", params.exponential_layers), ("linear", params.linear_layers)):
        crossed = masked_cross(x, layers, exponential=name == "exponential", dropout=rate, name=name)
        streams.append(dense(crossed, 1, f"{name}_logits", bias=params.base_logit()))
    logits = tf.add_n(streams) / 2
    return binary_head(features, labels, mode, params, logits, tri_bce(logits, streams))
