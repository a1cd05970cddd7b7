"""Blocks that models stack over a matrix of tokens: RankMixer, WuKong and OneTrans."""

import math
from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.models.layers.dropout import dropout as dropped
from ctr_trainer.models.layers.masks import masked_softmax
from ctr_trainer.models.layers.mlp import dense, mlp
from ctr_trainer.models.layers.normalization import layer_norm, rms_norm
from ctr_trainer.models.layers.weights import glorot

tf1 = tf.compat.v1


def tokens_of(inputs: tf.Tensor, tokens: int, dim: int, name: str = "tokens") -> tf.Tensor:
    """Splits the columns into equal parts, one per token, and projects each part with its own matrix.

    Args:
      inputs: float32[B, n]; the last part is padded with zeros.
      tokens: T.
      dim: D.
      name: name of the variable scope.

    Returns:
      float32[T, B, D].

    Advice: order the features of a spec by subject, so that each token has related features.

    Example:
      >>> tokens_of(tf.ones([2, 7]), tokens=4, dim=8).shape
      TensorShape([4, 2, 8])

    Source: Zhu et al., RankMixer: Scaling Up Ranking Models in Industrial Recommenders, CIKM 2025.
    """
    width = inputs.shape.as_list()[1]
    part = -(-width // tokens)
    parts = tf.reshape(tf.pad(inputs, [[0, 0], [0, part * tokens - width]]), [-1, tokens, part])
    return _for_each(tf.transpose(parts, [1, 0, 2]), dim, name)


def rank_mixer_block(inputs: tf.Tensor, expansion: int, name: str = "block") -> tf.Tensor:
    """Mixes the tokens without weights, then transforms each with its own network.

        S = norm(X + mix(X)),   Y_t = norm(S_t + gelu(S_t A_t + a_t) B_t + b_t)

    mix splits each token into T heads; token h of its result is the concatenation of head h of all tokens.

    Args:
      inputs: X, float32[T, B, D]; T divides D.
      expansion: width of a network's hidden layer, as a multiple of D.
      name: name of the variable scope.

    Returns:
      Y, float32[T, B, D].

    Advice: its cost is almost entirely in large matrix products, which processors run efficiently.

    Example:
      >>> rank_mixer_block(tf.ones([4, 2, 8]), expansion=2).shape
      TensorShape([4, 2, 8])

    Source: Zhu et al., RankMixer: Scaling Up Ranking Models in Industrial Recommenders, CIKM 2025; the dense variant.
    """
    tokens, _, dim = inputs.shape.as_list()
    with tf1.variable_scope(name):
        heads = tf.reshape(inputs, [tokens, -1, tokens, dim // tokens])
        mixed = tf.reshape(tf.transpose(heads, [2, 1, 0, 3]), [tokens, -1, dim])
        middle = layer_norm(inputs + mixed, name="mixing_norm")
        hidden = tf.nn.gelu(_for_each(middle, expansion * dim, "hidden"))
        return layer_norm(middle + _for_each(hidden, dim, "output"), name="output_norm")


def _for_each(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
    """Returns float32[T, B, units]: each token of float32[T, B, n] times its own matrix, plus its own bias."""
    tokens, _, width = inputs.shape.as_list()
    with tf1.variable_scope(name):
        kernel = glorot("kernel", [tokens, width, units], width, units)
        bias = tf1.get_variable("bias", [tokens, 1, units], initializer=tf1.zeros_initializer())
    return tf.matmul(inputs, kernel) + bias


def wukong_layer(
    inputs: tf.Tensor,
    products: int,
    combinations: int,
    rank: int,
    hidden_units: Sequence[int],
    normalize: bool = False,
    name: str = "wukong",
) -> tf.Tensor:
    """Computes new vectors from pairwise products and from linear combinations; each layer doubles the degree.

        Y = norm([F; L] + R X),   F = mlp(norm(X X' P)) W + b,   L = C X

    X X' P are the dot products of all pairs of vectors, compressed with P; X' P is computed first. R is the identity if
    the numbers of new and old vectors are equal. Unless `normalize` is true, norm is also the identity.

    Args:
      inputs: X, float32[B, n, dim].
      products: number of vectors in F.
      combinations: number of vectors in L.
      rank: number of columns of P, float32[n, rank].
      hidden_units: widths of the hidden layers between the products and F.
      normalize: whether norm is layer normalization.
      name: name of the variable scope.

    Returns:
      Y, float32[B, products + combinations, dim].

    Advice: use more layers and a higher rank for more data, and equal numbers of products and combinations.
    Normalization scales the short vector of a rare id, which is mostly noise, to the length of the others.

    Example:
      >>> wukong_layer(tf.ones([2, 5, 4]), products=3, combinations=2, rank=2, hidden_units=(8,)).shape
      TensorShape([2, 5, 4])

    Source: Zhang et al., Wukong: Towards a Scaling Law for Large-Scale Recommendation, ICML 2024, where norm is layer
    normalization. Each vector is normalised on its own, as in FuxiCTR.
    """
    _, count, dim = inputs.shape.as_list()
    with tf1.variable_scope(name):
        compressed = _combined(inputs, rank, "projection")
        pairs = tf.reshape(tf.matmul(inputs, compressed, transpose_b=True), [-1, count * rank])
        hidden = mlp(layer_norm(pairs, name="pairs_norm") if normalize else pairs, hidden_units)
        of_products = tf.reshape(dense(hidden, products * dim, "products"), [-1, products, dim])
        both = tf.concat([of_products, _combined(inputs, combinations, "combinations")], 1)
        residual = inputs if count == products + combinations else _combined(inputs, both.shape[1], "residual")
        return layer_norm(both + residual) if normalize else both + residual


def _combined(inputs: tf.Tensor, count: int, name: str) -> tf.Tensor:
    """Returns float32[B, count, dim], linear combinations of float32[B, n, dim]."""
    kernel = glorot(name, [inputs.shape.as_list()[1], count], inputs.shape.as_list()[1], count)
    return tf.einsum("bnd,nk->bkd", inputs, kernel)


def onetrans_block(
    tokens: tf.Tensor,
    histories: Sequence[tf.Tensor],
    masks: Sequence[tf.Tensor],
    heads: int,
    dropout: float = 0.0,
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
      tokens: x, float32[B, N, dim].
      histories: list of float32[B, L_s, dim_s], the behaviours with the newest first, then padding.
      masks: list of float32[B, L_s], 1 for a behaviour and 0 for padding.
      heads: number of attention heads, each over the whole vectors.
      dropout: fraction of the attention's result that is set to zero; 0 unless training.
      name: name of the variable scope.

    Returns:
      y, float32[B, N, dim].

    Advice: its cost grows with N times the length of the histories, not with the square of the length.

    Example:
      >>> onetrans_block(tf.ones([2, 3, 4]), [tf.ones([2, 5, 8])], [tf.ones([2, 5])], heads=2).shape
      TensorShape([2, 3, 4])

    Source: Zhang et al., OneTrans: Unified Feature Interaction and Sequence Modeling with One Transformer in Industrial
    Recommender, arXiv 2510.26104, 2025: one attention over features and sequences, parameters of each feature's own,
    and the narrow end of its pyramid, where only features have queries. Unlike in the paper, a token attends to all
    tokens, a single matrix A_ihs replaces the product of a query's and a key's matrix, and no feed-forward network
    follows.
    """
    _, count, dim = tokens.shape.as_list()
    sources = [rms_norm(each) for each in (tokens, *histories)]
    lengths, widths = zip(*(each.shape.as_list()[1:] for each in sources), strict=True)
    with tf1.variable_scope(name):
        asked = _for_each(tf.transpose(sources[0], [1, 0, 2]), heads * sum(widths), "queries")
        by_head = tf.transpose(tf.reshape(asked, [count, -1, heads, sum(widths)]), [1, 0, 2, 3])
        queries = tf.split(tf.reshape(by_head, [-1, count * heads, sum(widths)]), widths, 2)
        scores = [_scores(of_source, source) for of_source, source in zip(queries, sources, strict=True)]
        bias = tf1.get_variable("bias", [sum(lengths), heads], initializer=tf1.zeros_initializer())
        mask = tf.concat([tf.ones_like(tokens[:, :, 0]), *masks], 1)
        weights = masked_softmax(tf.concat(scores, 2) + tf.tile(tf.transpose(bias), [count, 1]), mask[:, None])
        parts = zip(tf.split(weights, lengths, 2), sources, strict=True)
        found = tf.concat([tf.matmul(of_source, source) for of_source, source in parts], 2)
        joined = tf.transpose(tf.reshape(found, [-1, count, heads * sum(widths)]), [1, 0, 2])
        joined = dropped(joined, dropout)
        return tokens + tf.transpose(_for_each(joined, dim, "output"), [1, 0, 2])


def _scores(queries: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
    return tf.matmul(queries, source, transpose_b=True) * (1.0 / math.sqrt(source.shape.as_list()[2]))
