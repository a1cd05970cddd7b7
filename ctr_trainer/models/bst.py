"""BST: a transformer over each history and the target behind it."""

import dataclasses
import typing

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.attention import transformer_block
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.masks import masked_mean
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import HistoryParams
from ctr_trainer.models.shared import History, histories, tower
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params(HistoryParams):
    """The params of BST.

    Attributes:
      heads: number of attention heads; must divide the dim of the sequences.
      blocks: number of transformer blocks, one after another.
      feed_forward_units: width of a block's hidden layer; 0 for four times the dim.
      pooling: outputs that the tower gets: all of them, as in the paper, their mean, or only the target's output.
    """

    heads: int = 2
    blocks: int = 1
    feed_forward_units: int = 0
    pooling: typing.Literal["concat", "mean", "target"] = "concat"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "heads", "blocks")
        self.require_at_least(0, "feed_forward_units")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp([e_1, ..., e_F, x, z_1, ..., z_S]))`, with z_s the outputs of transformer blocks.

        z = blocks([target, h_L, ..., h_1] + positions), the newest behaviour first

    Position 0 is the target, and position t the behaviour t steps before it. Each position has a learned vector; the
    paper has one per bucket of the time between the two.

    Advice: for histories whose order tells something; `pooling=mean` keeps the tower small.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(target="item", pooling="mean"))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Chen et al., Behavior Sequence Transformer for E-commerce Recommendation in Alibaba, DLP-KDD 2019, section
    2.
    """
    outputs = []
    for index, history in enumerate(histories(features, params, "bst")):
        with tf1.variable_scope(f"history_{index}"):
            outputs.append(_transformed(history, mode, params))
    logits = dense(tower(flat_inputs(features) + outputs, mode, params), 1, "logits", bias=params.base_logit())
    return binary_head(features, labels, mode, params, logits)


def _transformed(history: History, mode: str, params: Params) -> tf.Tensor:
    """Returns float32[B, n] of one history."""
    _, length, dim = history.values.shape.as_list()
    if dim % params.heads:
        raise UserError(
            f"heads={params.heads}: does not divide {dim}, the dim of sequence {history.name!r}; give a divisor of it"
        )
    target = history.target[:, None]
    x = tf.concat([target, history.newest_first()], 1)
    mask = tf.concat([tf.ones_like(target[:, :, 0]), history.mask], 1)
    x += tf1.get_variable("positions", [length + 1, dim], initializer=tf1.zeros_initializer())
    for block in range(params.blocks):
        units = params.feed_forward_units or 4 * dim
        x = transformer_block(x, mask, params.heads, units, params.dropout, mode == ModeKeys.TRAIN, f"block_{block}")
    if params.pooling == "target":
        return x[:, 0]
    if params.pooling == "mean":
        return masked_mean(x, mask)
    return tf.reshape(x * mask[..., None], [-1, (length + 1) * dim])
