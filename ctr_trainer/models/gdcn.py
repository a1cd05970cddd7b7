"""GDCN: a cross network whose layers have gates, below or next to a deep network."""

import dataclasses
from typing import Literal

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.cross import gated_cross
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of GDCN.

    Attributes:
      structure: place of the deep network: stacked upon the cross network (GDCN-S), or parallel to it (GDCN-P).
      cross_layers: number of cross layers; each adds one to the degree of the interactions.
    """

    structure: Literal["stacked", "parallel"] = "parallel"
    cross_layers: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "cross_layers")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(w mlp(c(x_0)) + b)` stacked, `sigmoid(w [c(x_0), mlp(x_0)] + b)` parallel; c is `gated_cross`.

    Advice: take it where DCN-v2 gets worse with a third or fourth cross layer.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(cross_layers=2))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Wang et al., Towards Deeper, Lighter and Interpretable Cross Network for CTR Prediction, CIKM
    2023; FuxiCTR's GDCNP and GDCNS. The field-level reduction of dimensions of that paper is left out.
    """
    inputs = flat_inputs(features)
    crossed = gated_cross(tf.concat(inputs, 1), params.cross_layers)
    if params.structure == "stacked":
        last = tower(crossed, mode, params)
    else:
        last = [crossed, tower(inputs, mode, params)]
    return binary_head(features, labels, mode, params, dense(last, 1, "logits", bias=params.base_logit()))
