"""FiBiNET: bilinear interactions of the embeddings, and of the embeddings weighted by importance."""

import dataclasses
from typing import Literal

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.gates import senet
from ctr_trainer.models.layers.inputs import field_embeddings
from ctr_trainer.models.layers.interactions import bilinear
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of FiBiNET.

    Attributes:
      bilinear: number of matrices: one for all pairs of fields, one for each left field, or one for each pair.
      senet_reduction: fields per unit of the squeeze layer.
    """

    bilinear: Literal["all", "each", "interaction"] = "each"
    senet_reduction: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "senet_reduction")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(linear + mlp([bilinear(e), bilinear(senet(e)), x]))`.

    Advice: `bilinear=interaction` for few fields, `all` for many.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(bilinear="all"))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Huang et al., FiBiNET: Combining Feature Importance and Bilinear Feature Interaction for Click-Through Rate
    Prediction, RecSys 2019, section 3.
    """
    embeddings = field_embeddings(features, "fibinet", fields=2)
    weighted = senet(embeddings, params.senet_reduction)
    inputs = [bilinear(embeddings, params.bilinear), bilinear(weighted, params.bilinear, "bilinear_senet")]
    if "dense" in features:
        inputs.append(features["dense"])
    logits = linear(features, bias=params.base_logit()) + dense(tower(inputs, mode, params), 1, "logits")
    return binary_head(features, labels, mode, params, logits)
