"""BST: a transformer over each history and the target behind it."""

import dataclasses
import math

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.masks import Present, masked_mean, masked_softmax
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.normalization import layer_norm
from ctr_trainer.models.params import HistoryParams
from ctr_trainer.models.shared import History, dropped, histories, tower
from ctr_trainer.settings.setting import setting
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params(HistoryParams):
    """The params of BST."""

    heads: int = setting(2, "attention heads; must divide the dim of the sequences", minimum=1)
    blocks: int = setting(1, "transformer blocks, one after another", minimum=1)
    feed_forward_units: int = setting(0, "width of a block's hidden layer; 0 for four times the dim", minimum=0)
    pooling: str = setting(
        "concat",
        "outputs that the tower gets: all of them, as in the paper, their mean, or only the target's output",
        choices=("concat", "mean", "target"),
    )


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp([e_1, ..., e_F, x, z_1, ..., z_S]))`, with z_s the outputs of transformer blocks.

        z = blocks([target, h_L, ..., h_1] + positions), the newest behaviour first

    Position 0 is the target, and position t the behaviour t steps before it. Each position has a learned vector; the
    paper has one per bucket of the time between the two.

    Advice: for histories whose order tells something; `pooling=mean` keeps the tower small.

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
            f"heads={params.heads}: does not divide {dim}, the dim of sequence {history.feature.name!r}; give a divisor"
        )
    target = history.target[:, None]
    x = tf.concat([target, history.newest_first()], 1)
    mask = tf.concat([tf.ones_like(target[:, :, 0]), history.mask], 1)
    x += tf1.get_variable("positions", [length + 1, dim], initializer=tf1.zeros_initializer())
    for block in range(params.blocks):
        x = transformer_block(x, mask, mode, params, f"block_{block}")
    if params.pooling == "target":
        return x[:, 0]
    if params.pooling == "mean":
        return masked_mean(x, mask)
    return tf.reshape(x * mask[..., None], [-1, (length + 1) * dim])


def transformer_block(
    inputs: tf.Tensor, mask: tf.Tensor, mode: str, params: Params, name: str = "transformer"
) -> tf.Tensor:
    """Applies self-attention and a feed-forward network, each followed by a residual connection and a layer norm.

        y = norm(x + dropout(attention(x)))
        z = norm(y + dropout(leaky_relu(y W_1 + b_1) W_2 + b_2))

    `inputs` is x and the result z, both float32[B, L, n]. No position attends to positions whose `mask`, float32[B, L],
    is 0, and the outputs there are 0.

    Source: Vaswani et al., Attention Is All You Need, NIPS 2017, section 3; as in BST, section 2.2.
    """
    width, present = inputs.shape.as_list()[2], Present.of(mask)
    values = present.pack(inputs)
    with tf1.variable_scope(name):
        attended = self_attention(values, present, mask, params.heads)
        middle = layer_norm(values + dropped(attended, mode, params), name="attention_norm")
        hidden = dense(middle, params.feed_forward_units or 4 * width, "hidden")
        output = dense(tf.nn.leaky_relu(hidden), width, "output")
        return present.unpack(layer_norm(middle + dropped(output, mode, params), name="output_norm"))


def self_attention(values: tf.Tensor, present: Present, mask: tf.Tensor, heads: int) -> tf.Tensor:
    """Computes `concat_h(softmax(Q_h K_h' / sqrt(n / heads)) V_h) W + b`, float32[N, n], of the N values with mask 1.

    `values` is float32[N, n], and `mask`, float32[B, L], says which of the B * L positions they have.
    """
    width = values.shape.as_list()[1]
    size = width // heads
    with tf1.variable_scope("attention"):
        # One product for queries, keys and values of all heads.
        projected = present.unpack(dense(values, 3 * width, "projection"))
        by_head = tf.transpose(tf.reshape(projected, [-1, present.length, 3 * heads, size]), [0, 2, 1, 3])
        queries, keys, contents = tf.split(by_head, 3, 1)
        scores = tf.matmul(queries, keys, transpose_b=True) * (1.0 / math.sqrt(size))
        weights = masked_softmax(scores, mask[:, None, None])
        joined = tf.transpose(tf.matmul(weights, contents), [0, 2, 1, 3])
        return dense(present.pack(tf.reshape(joined, [-1, present.length, width])), width, "output")
