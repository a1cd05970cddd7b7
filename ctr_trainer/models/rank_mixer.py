"""RankMixer: blocks in which tokens of features swap their parts, and each has a network of its own."""

import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense, dense_per_token
from ctr_trainer.models.layers.normalization import layer_norm
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower
from ctr_trainer.settings.setting import setting


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of RankMixer."""

    tokens: int = setting(8, "tokens, into which all features are cut", minimum=1)
    token_dim: int = setting(64, "width of a token; a multiple of `tokens`", minimum=1)
    blocks: int = setting(2, "blocks, one after another", minimum=1)
    expansion: int = setting(
        2, "width of the hidden layer of a token's network, as a multiple of `token_dim`", minimum=1
    )

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.token_dim % self.tokens:
            yield f"{{token_dim}}: must be a multiple of tokens={self.tokens}"


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp(mean_t X_t))`, X behind the blocks over the tokens of all features side by side.

    Advice: scale it by `token_dim` first; it needs much data before it passes a cross network.

    Source: Zhu et al., RankMixer: Scaling Up Ranking Models in Industrial Recommenders, CIKM 2025; the dense variant,
    without the sparse mixture of experts of that paper.
    """
    tokens = tokens_of(tf.concat(flat_inputs(features), 1), params.tokens, params.token_dim)
    for index in range(params.blocks):
        tokens = rank_mixer_block(tokens, params.expansion, f"block_{index}")
    logits = dense(tower(tf.reduce_mean(tokens, 0), mode, params), 1, "logits", bias=params.base_logit())
    return binary_head(features, labels, mode, params, logits)


def tokens_of(inputs: tf.Tensor, tokens: int, dim: int) -> tf.Tensor:
    """Splits the columns of float32[B, n] into T equal parts, and projects each to D floats: float32[T, B, D].

    The last part is padded with zeros. Order the features of a spec by subject, so that a token has related features.
    """
    width = inputs.shape.as_list()[1]
    part = -(-width // tokens)
    parts = tf.reshape(tf.pad(inputs, [[0, 0], [0, part * tokens - width]]), [-1, tokens, part])
    return dense_per_token(tf.transpose(parts, [1, 0, 2]), dim, "tokens")


def rank_mixer_block(inputs: tf.Tensor, expansion: int, name: str = "block") -> tf.Tensor:
    """Mixes the tokens without weights, then transforms each with its own network.

        S = norm(X + mix(X)),   Y_t = norm(S_t + gelu(S_t A_t + a_t) B_t + b_t)

    `inputs` is X and the result Y, both float32[T, B, D]; T divides D. mix splits each token into T heads; token h of
    its result is the concatenation of head h of all tokens. The hidden layer has `expansion * D` units.
    """
    tokens, _, dim = inputs.shape.as_list()
    with tf.compat.v1.variable_scope(name):
        heads = tf.reshape(inputs, [tokens, -1, tokens, dim // tokens])
        mixed = tf.reshape(tf.transpose(heads, [2, 1, 0, 3]), [tokens, -1, dim])
        middle = layer_norm(inputs + mixed, name="mixing_norm")
        hidden = tf.nn.gelu(dense_per_token(middle, expansion * dim, "hidden"))
        return layer_norm(middle + dense_per_token(hidden, dim, "output"), name="output_norm")
