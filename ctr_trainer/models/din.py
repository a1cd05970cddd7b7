"""DIN: an attention pools each history, weighted by the target."""

import dataclasses
import typing

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.attention import attention_pooling
from ctr_trainer.models.layers.inputs import field_embeddings, flat_inputs
from ctr_trainer.models.layers.interactions import fm
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import HistoryParams
from ctr_trainer.models.shared import histories, tower


@dataclasses.dataclass(frozen=True)
class Params(HistoryParams):
    """The params of DIN.

    Attributes:
      attention_units: widths of the activation unit's hidden layers.
      attention_activation: activation behind each of these layers.
      attention_softmax: normalise the weights of a history; the paper does not.
      wide: terms added to the deep part: none, as in the paper; one weight per feature value, as in Wide & Deep; or, as
        in DeepFM, these weights and the products of all pairs of vectors, the histories among them, all of one dim.
    """

    attention_units: tuple[int, ...] = (36,)
    attention_activation: typing.Literal["dice", "prelu", "relu", "sigmoid"] = "dice"
    attention_softmax: bool = False
    wide: typing.Literal["none", "linear", "fm"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_widths("attention_units")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp([e_1, ..., e_F, x, v_1, ..., v_S]))`, with `v_s = sum_t a(target, h_st) h_st`.

    Advice: give `target` if the histories share their slot with no feature; `wide=linear` helps on small data.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(target="item", attention_units=(80, 40)))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018, section 4.
    """
    interests = [
        attention_pooling(
            history.target,
            history.values,
            history.mask,
            params.attention_units,
            params.attention_activation,
            params.attention_softmax,
            training=mode == ModeKeys.TRAIN,
            name=f"attention_{index}",
        )
        for index, history in enumerate(histories(features, params, "din"))
    ]
    logits = dense(tower(flat_inputs(features) + interests, mode, params), 1, "logits", bias=params.base_logit())
    if params.wide != "none":
        logits += linear(features)
    if params.wide == "fm":
        logits += fm(_with_interests(features, interests))
    return binary_head(features, labels, mode, params, logits)


def _with_interests(features: Features, interests: list[tf.Tensor]) -> tf.Tensor:
    """Returns float32[B, F + S, dim], the embeddings of all features and the pooled histories."""
    embeddings = field_embeddings(features, "din")
    return tf.concat([embeddings, *(interest[:, None] for interest in interests)], 1)
