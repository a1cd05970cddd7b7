"""MaskNet: blocks whose inputs are multiplied by masks, which are computed from the whole example."""

import dataclasses
from typing import Literal

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.gates import mask_block
from ctr_trainer.models.layers.inputs import all_field_embeddings, flat
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.normalization import layer_norm
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import dropped, tower


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of MaskNet.

    Attributes:
      structure: serial: blocks one after another, of the widths `hidden_units`; parallel: blocks under a deep network.
      blocks: number of parallel blocks.
      block_units: width of each parallel block.
      reduction: width of a mask's hidden layer, divided by the width of the mask.
    """

    structure: Literal["serial", "parallel"] = "parallel"
    blocks: int = 3
    block_units: int = 64
    reduction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "blocks", "block_units")
        if not self.reduction > 0:
            raise self.wrong("reduction", "must be above 0")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(w block_n(... block_1(norm(e), e) ..., e) + b)` serial, `sigmoid(w mlp([block_i(norm(e), e)]) + b)`
    parallel; e has a vector for each dense feature too.

    Advice: begin with `parallel`; `serial` takes the widths of its blocks from `hidden_units`.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(blocks=2, block_units=16))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Wang et al., MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models by Instance-Guided Mask,
    DLP-KDD 2021, section 3, "MaskNet".
    """
    embeddings = all_field_embeddings(features, "masknet")
    context, normalized = flat(embeddings), flat(layer_norm(embeddings, shared=False))
    if params.structure == "serial":
        last = normalized
        for index, units in enumerate(params.hidden_units):
            block = mask_block(last, context, units, params.reduction, params.activation, f"block_{index}")
            last = dropped(block, mode, params)
    else:
        blocks = [
            mask_block(normalized, context, params.block_units, params.reduction, params.activation, f"block_{index}")
            for index in range(params.blocks)
        ]
        last = tower(blocks, mode, params)
    return binary_head(features, labels, mode, params, dense(last, 1, "logits", bias=params.base_logit()))
