"""DCN-v2: a cross network below or next to a deep one."""

import dataclasses
from collections.abc import Iterator, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns, joined
from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.cross import cross
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower
from ctr_trainer.settings.setting import setting


@dataclasses.dataclass(frozen=True)
class CrossParams(ModelParams):
    """The params of a cross network with a deep network."""

    structure: str = setting(
        "parallel",
        "place of the deep network: stacked upon the cross network, or parallel to it",
        choices=("stacked", "parallel"),
    )
    cross_layers: int = setting(3, "cross layers; each adds one to the degree of the interactions", minimum=1)


@dataclasses.dataclass(frozen=True)
class Params(CrossParams):
    """The params of DCN-v2."""

    cross_rank: int = setting(0, "rank of the cross layers' matrices; 0 for full matrices", minimum=0)
    experts: int = setting(
        1, "low-rank transformations that a gate mixes in each cross layer; 1 for no gate", minimum=1
    )

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.experts > 1 and not self.cross_rank:
            yield "{experts}: the experts are low-rank, so give cross_rank too, as cross_rank=32"


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(w mlp(cross(x_0)) + b)` stacked, `sigmoid(w [cross(x_0), mlp(x_0)] + b)` parallel; x_0 all features.

    Advice: the first to try after DeepFM; with more than some hundred inputs give it a `cross_rank`.

    Source: Wang et al., DCN V2: Improved Deep & Cross Network, WWW 2021, section 3.
    """
    inputs = flat_inputs(features)
    crossed = cross(joined(inputs), params.cross_layers, params.cross_rank, params.experts)
    return with_deep(features, labels, mode, params, inputs, crossed)


def with_deep(
    features: Features, labels: Labels, mode: str, params: CrossParams, inputs: Sequence[Columns], crossed: tf.Tensor
) -> EstimatorSpec:
    """Makes the spec of a deep network upon or next to the result of a cross network over the inputs."""
    if params.structure == "stacked":
        last = tower(crossed, mode, params)
    else:
        last = [crossed, tower(inputs, mode, params)]
    return binary_head(features, labels, mode, params, dense(last, 1, "logits", bias=params.base_logit()))
