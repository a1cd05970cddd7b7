"""SDIM: long histories, pooled by random signatures that behaviours share with the target."""

import dataclasses
import functools

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.attention import sampled_attention
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.signatures import MOST_BITS
from ctr_trainer.models.params import HistoryParams
from ctr_trainer.models.shared import History, histories, tower


@dataclasses.dataclass(frozen=True)
class Params(HistoryParams):
    """The params of SDIM.

    Attributes:
      signatures: number of random signatures.
      bits: random projections per signature, at most 63; more of them let fewer behaviours through.
      normalize: divide the sum of each signature's behaviours by its length.
    """

    signatures: int = 16
    bits: int = 3
    normalize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "signatures", "bits")
        if self.bits > MOST_BITS:
            raise self.wrong("bits", f"must be at most {MOST_BITS}")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp([e_1, ..., e_F, x, v_1, ..., v_S]))`, with v_s the `sampled_attention` of history s.

    Advice: for histories of hundreds to thousands; for tens of behaviours take `din`. On MovieLens `normalize` costs
    0.01 of validation AUC.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(target="item", bits=2))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Cao et al., Sampling Is All You Need on Modeling Long-Term User Behaviors for CTR Prediction, CIKM 2022,
    as in FuxiCTR's SDIM. Its attention over the newest behaviours is left out.
    """
    interests = [_interest(history, params) for history in histories(features, params, "sdim")]
    logits = dense(tower(flat_inputs(features) + interests, mode, params), 1, "logits", bias=params.base_logit())
    return binary_head(features, labels, mode, params, logits)


def _interest(history: History, params: Params) -> tf.Tensor:
    """Returns float32[B, dim] of one history."""
    pooled = functools.partial(
        sampled_attention, signatures=params.signatures, bits=params.bits, normalize=params.normalize
    )
    behaviours = history.behaviours
    if behaviours is not None:
        return pooled(history.target, behaviours)
    return pooled(history.target, history.values, history.mask)
