"""MaskNet: blocks whose inputs are multiplied by masks, which are computed from the whole example."""

import dataclasses

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import all_field_embeddings, flat
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.normalization import layer_norm
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import dropped, tower
from ctr_trainer.settings.setting import setting


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of MaskNet."""

    structure: str = setting(
        "parallel",
        "serial: blocks one after another, of the widths `hidden_units`; parallel: blocks under a deep network",
        choices=("serial", "parallel"),
    )
    blocks: int = setting(3, "parallel blocks", minimum=1)
    block_units: int = setting(64, "width of each parallel block", minimum=1)
    reduction: float = setting(1.0, "width of a mask's hidden layer, divided by the width of the mask", above=0.0)


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(w block_n(... block_1(norm(e), e) ..., e) + b)` serial, `sigmoid(w mlp([block_i(norm(e), e)]) + b)`
    parallel; e has a vector for each dense feature too.

    Advice: begin with `parallel`; `serial` takes the widths of its blocks from `hidden_units`.

    Source: Wang et al., MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models by Instance-Guided Mask,
    DLP-KDD 2021, section 3.
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


def mask_block(
    inputs: tf.Tensor, context: tf.Tensor, units: int, reduction: float, activation: str = "relu", name: str = "block"
) -> tf.Tensor:
    """Computes `activation(layer_norm(W (mask * x)))` with the instance-guided mask `W_2 relu(W_1 c + b_1) + b_2`.

    `inputs` is x, float32[B, n], normalised embeddings or the output of the previous block; `context` is c, float32[B,
    m], the embeddings. The mask's hidden layer has `reduction * n` units. The result is float32[B, units].
    """
    width = inputs.shape.as_list()[1]
    with tf.compat.v1.variable_scope(name):
        hidden = tf.nn.relu(dense(context, max(1, int(reduction * width)), "aggregation"))
        mask = dense(hidden, width, "projection")
        return getattr(tf.nn, activation)(layer_norm(dense(inputs * mask, units, "output")))
