"""DIN: an attention pools each history, weighted by the target."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.dice import dice, prelu
from ctr_trainer.models.layers.inputs import field_embeddings, flat_inputs
from ctr_trainer.models.layers.interactions import fm
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.layers.masks import Present
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.weights import glorot
from ctr_trainer.models.params import HistoryParams
from ctr_trainer.models.shared import histories, tower
from ctr_trainer.settings.setting import setting

tf1 = tf.compat.v1
ACTIVATIONS = ("dice", "prelu", "relu", "sigmoid")


@dataclasses.dataclass(frozen=True)
class Params(HistoryParams):
    """The params of DIN."""

    attention_units: tuple[int, ...] = setting(
        (36,), "widths of the activation unit's hidden layers", minimum=1, fewest=1
    )
    attention_activation: str = setting("dice", "activation behind each of these layers", choices=ACTIVATIONS)
    attention_softmax: bool = setting(False, "normalise the weights of a history; the paper does not")
    wide: str = setting(
        "none",
        "terms added to the deep part: none, as in the paper; one weight per feature value, as in Wide & Deep; or, as "
        "in DeepFM, these weights and the products of all pairs of vectors, the histories among them, all of one dim",
        choices=("none", "linear", "fm"),
    )


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp([e_1, ..., e_F, x, v_1, ..., v_S]))`, with `v_s = sum_t a(target, h_st) h_st`.

    Advice: give `target` if the histories share their slot with no feature; `wide=linear` helps on small data.

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
        vectors = [field_embeddings(features, "din"), *(interest[:, None] for interest in interests)]
        logits += fm(tf.concat(vectors, 1))
    return binary_head(features, labels, mode, params, logits)


def attention_pooling(
    target: tf.Tensor,
    history: tf.Tensor,
    mask: tf.Tensor,
    hidden_units: Sequence[int] = (36,),
    activation: str = "dice",
    softmax: bool = False,
    training: bool = False,
    name: str = "attention",
) -> tf.Tensor:
    """Pools a history: `sum_t a_t h_t`, float32[B, dim], where a_t is the relevance of behaviour t for the target.

        a_t = mask_t * mlp([q, h_t, q - h_t, q * h_t])

    Without `softmax` the weights are not normalised, so that a strong interest gives a long vector. For an empty
    history the result is zeros.

    Args:
      target: q, float32[B, dim].
      history: h, float32[B, L, dim].
      mask: float32[B, L], 1 for a behaviour and 0 for padding.
      hidden_units: widths of the activation unit's hidden layers; at least one.
      activation: one of `ACTIVATIONS`, applied after each hidden layer.
      softmax: whether the weights are normalised over the history.
      training: whether this graph trains; if so, Dice uses the statistics of the batch.
      name: name of the variable scope.

    Source: section 4.3.
    """
    present = Present.of(mask)
    behaviours = present.pack(history)
    with tf1.variable_scope(name):
        hidden = _pairs(target, behaviours, present, hidden_units[0])
        for index in range(len(hidden_units)):
            if index:
                hidden = dense(hidden, hidden_units[index], f"layer_{index}")
            scope = f"activation_{index}"
            if activation == "dice":
                hidden = dice(hidden, present, training=training, name=scope)
            elif activation == "prelu":
                hidden = prelu(hidden, scope)
            else:
                hidden = getattr(tf.nn, activation)(hidden)
        scores = dense(hidden, 1, "score")
    weights = present.softmax(scores) if softmax else scores
    return tf.ensure_shape(present.sum(behaviours * weights), target.shape)


def _pairs(target: tf.Tensor, behaviours: tf.Tensor, present: Present, units: int) -> tf.Tensor:
    """Computes `[q, h, q - h, q * h] W + b` of N behaviours: `q (W_0 + W_2) + h (W_1 - W_2) + (q * h) W_3 + b`."""
    dim = behaviours.shape.as_list()[1]
    with tf1.variable_scope("layer_0"):
        kernel = glorot("kernel", [4, dim, units], 4 * dim, units)
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    of_target, of_history, of_difference, of_product = tf.unstack(kernel)
    by_behaviour = tf.matmul(behaviours, of_history - of_difference)
    by_behaviour += tf.matmul(behaviours * present.repeat(target), of_product)
    by_example = tf.nn.bias_add(tf.matmul(target, of_target + of_difference), bias)
    return by_behaviour + present.repeat(by_example)
