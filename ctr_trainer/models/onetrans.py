"""OneTrans: blocks in which the features attend to each other and to the behaviours of all histories at once."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.dropout import dropout
from ctr_trainer.models.layers.inputs import all_field_embeddings, flat
from ctr_trainer.models.layers.masks import masked_softmax
from ctr_trainer.models.layers.mlp import dense, dense_per_token
from ctr_trainer.models.params import SequenceParams
from ctr_trainer.models.shared import read_sequences, tower
from ctr_trainer.settings.setting import setting

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params(SequenceParams):
    """The params of OneTrans."""

    heads: int = setting(2, "attention heads", minimum=1)
    blocks: int = setting(1, "blocks, one after another", minimum=1)


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp([z_1, ..., z_N]))`, with the N tokens `z = blocks([e_1, ..., e_F, x_m v_m])`.

    A token is a feature. The features that describe the shown item have the role that the target has in other models.
    In a block, each token attends to all tokens and to the behaviours of all histories.

    Advice: shuffle all rows together; with rows by Adagrad and without L2, a second epoch overfits.

    Source: Zhang et al., OneTrans: Unified Feature Interaction and Sequence Modeling with One Transformer in Industrial
    Recommender, arXiv 2510.26104, 2025: one attention over features and sequences, parameters of each feature's own,
    and the narrow end of its pyramid, where only features have queries. Unlike in the paper, a token attends to all
    tokens, a single matrix A_ihs replaces the product of a query's and a key's matrix, and no feed-forward network
    follows.
    """
    tokens = all_field_embeddings(features, "onetrans")
    read = read_sequences(features, params, "onetrans")
    histories, masks = [each.newest_first() for each in read], [each.mask for each in read]
    rate = params.dropout if mode == ModeKeys.TRAIN else 0.0
    for block in range(params.blocks):
        tokens = onetrans_block(tokens, histories, masks, params.heads, rate, name=f"block_{block}")
    logits = dense(tower(flat(tokens), mode, params), 1, "logits", bias=params.base_logit())
    return binary_head(features, labels, mode, params, logits)


def onetrans_block(
    tokens: tf.Tensor,
    histories: Sequence[tf.Tensor],
    masks: Sequence[tf.Tensor],
    heads: int,
    rate: float = 0.0,
    name: str = "onetrans",
) -> tf.Tensor:
    """Adds to each token the result of its attention over all tokens and over the behaviours of all histories.

        y_i = x_i + sum_h sum_s (sum_{j in s} w_ihj c_j) V_ihs + b_i
        w_ihj = softmax_j(<c_i A_ihs + a_ihs, c_j> / sqrt(dim_s) + r_hj),   c = x / sqrt(mean(x^2) + 0.001)

    s is the source of c_j: the tokens, or one of the histories. The softmax is over all sources together. Each token
    has its own matrices for each source, because features differ in kind: A projects its query, and V its output. The
    keys and values are the vectors themselves, so behaviours need no projection. r is a learned number for each head
    and token, and for each head and distance of a behaviour from the newest one.

    Args:
      tokens: x, float32[B, N, dim]; the result y has the same shape.
      histories: list of float32[B, L_s, dim_s], the behaviours with the newest first, then padding.
      masks: list of float32[B, L_s], 1 for a behaviour and 0 for padding.
      heads: number of attention heads, each over the whole vectors.
      rate: share of the attention's result that is set to zero; 0 unless training.
      name: name of the variable scope.
    """
    _, count, dim = tokens.shape.as_list()
    sources = [rms_norm(each) for each in (tokens, *histories)]
    lengths, widths = zip(*(each.shape.as_list()[1:] for each in sources), strict=True)
    with tf1.variable_scope(name):
        asked = dense_per_token(tf.transpose(sources[0], [1, 0, 2]), heads * sum(widths), "queries")
        by_head = tf.transpose(tf.reshape(asked, [count, -1, heads, sum(widths)]), [1, 0, 2, 3])
        queries = tf.split(tf.reshape(by_head, [-1, count * heads, sum(widths)]), widths, 2)
        scores = [_scores(of_source, source) for of_source, source in zip(queries, sources, strict=True)]
        bias = tf1.get_variable("bias", [sum(lengths), heads], initializer=tf1.zeros_initializer())
        mask = tf.concat([tf.ones_like(tokens[:, :, 0]), *masks], 1)
        weights = masked_softmax(tf.concat(scores, 2) + tf.tile(tf.transpose(bias), [count, 1]), mask[:, None])
        parts = zip(tf.split(weights, lengths, 2), sources, strict=True)
        found = tf.concat([tf.matmul(of_source, source) for of_source, source in parts], 2)
        joined = tf.transpose(tf.reshape(found, [-1, count, heads * sum(widths)]), [1, 0, 2])
        return tokens + tf.transpose(dense_per_token(dropout(joined, rate), dim, "output"), [1, 0, 2])


def _scores(queries: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
    return tf.matmul(queries, source, transpose_b=True) * (1.0 / math.sqrt(source.shape.as_list()[2]))


@tf.custom_gradient
def rms_norm(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Scales the last axis to a mean square of at most 1: `y = x / sqrt(mean(x^2) + 0.001)`.

    It has no weights, because the matrix of the next layer can scale each column. Vectors that are small compared with
    the root of 0.001 stay small, such as the rows of rare values, which are close to their random initial values. The
    gradient is `(g - y mean(g y)) / sqrt(mean(x^2) + 0.001)`.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, NeurIPS 2019, section 3.
    """
    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + 1e-3)
    output = x * scale
    return output, lambda g: scale * (g - output * tf.reduce_mean(g * output, -1, keepdims=True))
