"""RankMixer: blocks in which tokens of features swap their parts, and each has a network of its own."""

import dataclasses

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.tokens import rank_mixer_block, tokens_of
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of RankMixer.

    Attributes:
      tokens: number of tokens, into which all features are cut.
      token_dim: width of a token; a multiple of `tokens`.
      blocks: number of blocks, one after another.
      expansion: width of the hidden layer of a token's network, as a multiple of `token_dim`.
    """

    tokens: int = 8
    token_dim: int = 64
    blocks: int = 2
    expansion: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "tokens", "token_dim", "blocks", "expansion")
        if self.token_dim % self.tokens:
            raise self.wrong("token_dim", f"must be a multiple of tokens={self.tokens}")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp(mean_t X_t))`, X behind the blocks over the tokens of all features side by side.

    Advice: scale it by `token_dim` first; it needs much data before it passes a cross network.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(tokens=4, token_dim=16))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Zhu et al., RankMixer: Scaling Up Ranking Models in Industrial Recommenders, CIKM 2025. The sparse mixture
    of experts of that paper is left out.
    """
    tokens = tokens_of(tf.concat(flat_inputs(features), 1), params.tokens, params.token_dim)
    for index in range(params.blocks):
        tokens = rank_mixer_block(tokens, params.expansion, f"block_{index}")
    logits = dense(tower(tf.reduce_mean(tokens, 0), mode, params), 1, "logits", bias=params.base_logit())
    return binary_head(features, labels, mode, params, logits)
