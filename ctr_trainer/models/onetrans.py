"""OneTrans: blocks in which the features attend to each other and to the behaviours of all histories at once."""

import dataclasses

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import all_field_embeddings, flat
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.tokens import onetrans_block
from ctr_trainer.models.params import SequenceParams
from ctr_trainer.models.shared import read_sequences, tower


@dataclasses.dataclass(frozen=True)
class Params(SequenceParams):
    """The params of OneTrans.

    Attributes:
      heads: number of attention heads.
      blocks: number of blocks, one after another.
    """

    heads: int = 2
    blocks: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "heads", "blocks")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp([z_1, ..., z_N]))`, with the N tokens `z = blocks([e_1, ..., e_F, x_m v_m])`.

    A token is a feature. The features that describe the shown item have the role that the target has in other models.
    In a block, see `layers.tokens.onetrans_block`, each token attends to all tokens and to the behaviours of all
    histories.

    Advice: shuffle all rows together; with rows by Adagrad and without L2, a second epoch overfits.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(sequences=("history",), heads=2))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Zhang et al., OneTrans: Unified Feature Interaction and Sequence Modeling with One Transformer in Industrial
    Recommender, arXiv 2510.26104, 2025.
    """
    tokens = all_field_embeddings(features, "onetrans")
    read = read_sequences(features, params, "onetrans")
    histories, masks = [each.newest_first() for each in read], [each.mask for each in read]
    rate = params.dropout if mode == ModeKeys.TRAIN else 0.0
    for block in range(params.blocks):
        tokens = onetrans_block(tokens, histories, masks, params.heads, rate, name=f"block_{block}")
    logits = dense(tower(flat(tokens), mode, params), 1, "logits", bias=params.base_logit())
    return binary_head(features, labels, mode, params, logits)
