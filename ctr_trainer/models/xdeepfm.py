"""xDeepFM: a compressed interaction network next to a linear model and a deep network."""

import dataclasses

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.cross import cin
from ctr_trainer.models.layers.inputs import field_embeddings, flat_inputs
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of xDeepFM.

    Attributes:
      cin_units: number of feature maps of each layer of the compressed interaction network.
    """

    cin_units: tuple[int, ...] = (64, 64)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_widths("cin_units")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(linear + w_cin cin(e) + w_mlp mlp([e_1, ..., e_F, x]) + b)`.

    Advice: it costs several times DeepFM; keep `cin_units` small.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(cin_units=(16, 16)))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Lian et al., xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems, KDD
    2018, section 3.
    """
    interactions = cin(field_embeddings(features, "xdeepfm"), params.cin_units)
    deep = tower(flat_inputs(features), mode, params)
    logits = linear(features, bias=params.base_logit()) + dense([interactions, deep], 1, "logits")
    return binary_head(features, labels, mode, params, logits)
