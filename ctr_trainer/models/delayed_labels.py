"""Importance weights for labels that come later than their impressions.

A stream with late labels has more records than impressions. An impression whose label is not known yet comes as a
negative record; if it turns out positive, a second record follows. Weights on the records' cross entropies correct for
both: the weighted loss has its minimum at p(x), the probability that an impression of x is positive.

With `s(x)`, the probability that the label of a positive impression is late, there are 1 + p s records of x for each
impression: p positive ones, and 1 - p + p s negative ones, a share p_rn = (1 - p) / (1 - p + p s) of them rightly.
"""

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense, mlp
from ctr_trainer.models.layers.normalization import batch_moments
from ctr_trainer.models.params import ES_DFM, WAIT, ModelParams
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError

LATE = "late"  # Name of the label that is 1 for a positive record that follows a negative one.
_UNITS = (64,)  # Hidden layer of the network for s.
_EPSILON = 1e-6  # Added to a variance.


class LabelsHook(tf1.train.SessionRunHook):
    """Raises UserError after a batch with wrong labels.

    Args:
      is_wrong, is_counted: bool[B].
      text: f(number of wrong labels, number of counted ones) -> the message.
    """

    def __init__(self, is_wrong: tf.Tensor, is_counted: tf.Tensor, text: Callable[[int, int], str]) -> None:
        self._counts, self._text = [tf.math.count_nonzero(each) for each in (is_wrong, is_counted)], text

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs:
        return tf1.train.SessionRunArgs(self._counts)

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        wrong, counted = run_values.results
        if wrong:
            raise UserError(self._text(wrong, counted))


@dataclasses.dataclass(frozen=True)
class Correction:
    """What late labels change in the loss of a batch.

    `importance`, float32[B], is a factor on each record's cross entropy, without a gradient. Training adds the scalar
    `lateness_loss` to the loss, if s is learned. The session hook checks the labels.
    """

    importance: tf.Tensor
    lateness_loss: tf.Tensor | None
    hook: LabelsHook


def late_labels_hook(name: str, labels: tf.Tensor, late: tf.Tensor | None) -> LabelsHook:
    """Returns the hook of a batch with a label that is neither 0 nor 1, or with a late record that is not positive.

    `late` is None if the data does not say which records are late.
    """
    is_wrong = tf.logical_and(tf.not_equal(labels, 0.0), tf.not_equal(labels, 1.0))
    rule = f"{name or 'the label'} must be 0 or 1"
    if late is not None:
        is_wrong = tf.logical_or(is_wrong, tf.logical_and(tf.not_equal(late, 0.0), tf.not_equal(late, labels)))
        rule += f", and {LATE} must be 0 or, for a positive record, 1"
    return LabelsHook(
        is_wrong,
        tf.ones_like(is_wrong),
        lambda wrong, size: (
            f"{wrong} of the {size} labels of a batch on rank {distributed.rank()} are wrong: {rule}; "
            "correct the data, or give the label a `threshold` or `positive` in the feature spec"
        ),
    )


def correction(
    features: Mapping[str, tf.Tensor],
    labels: tf.Tensor | dict[str, tf.Tensor] | None,
    mode: str,
    params: ModelParams,
    logits: tf.Tensor,
) -> Correction | None:
    """Makes the correction that `params.delayed_labels` asks for, from the arguments of a `model_fn` and logits of p.

    It is None if labels are not late, or if the graph does not train.

    Raises:
      UserError: `es_dfm`, and the data has no label `late`.

    Caveat: `es_dfm` reads the embeddings in every mode, so that the rows of a model without any have the same columns
    in each.
    """
    if params.delayed_labels == WAIT:
        return None
    inputs = flat_inputs(features) if params.delayed_labels == ES_DFM else []
    if mode != ModeKeys.TRAIN:
        return None
    late = labels.get(LATE) if isinstance(labels, dict) else None
    own = labels[params.label or next(iter(labels))] if isinstance(labels, dict) else labels
    logits, hook = tf.squeeze(logits, 1), late_labels_hook(params.label, own, late)
    if params.delayed_labels != ES_DFM:
        return Correction(fake_negative_importance(own, logits), None, hook)
    if late is None or params.label == LATE:
        raise UserError(
            f"delayed_labels={ES_DFM}: the data needs two labels, the one to predict, which `label` names (now "
            f"{params.label!r}), and {LATE!r}: 1 for a positive record that follows a negative one, else 0"
        )
    inputs = [_standardized(x, features["weight"]) for x in inputs]
    late_logits = tf.squeeze(dense(mlp(inputs, _UNITS, name="lateness"), 1, "lateness_logits"), 1)
    importance = es_dfm_importance(own, logits, late_logits)
    return Correction(importance, lateness_loss(own, late, late_logits, features["weight"]), hook)


def fake_negative_importance(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Computes the weights of the fake-negative weighted loss (FNW): `es_dfm_importance` where every label is late.

        1 + p for a positive record, (1 - p) (1 + p) for a negative one; p without a gradient

    Labels, logits of p and weights are float32[B].

    Source: Ktena et al., Addressing Delayed Feedback for Continuous Training with Neural Networks in CTR Prediction,
    RecSys 2019, section 3.
    """
    p = tf.stop_gradient(tf.sigmoid(logits))
    return (1 + p) * tf.where(labels > 0, tf.ones_like(p), 1 - p)


def es_dfm_importance(labels: tf.Tensor, logits: tf.Tensor, late_logits: tf.Tensor) -> tf.Tensor:
    """Computes the weights of ES-DFM.

        1 + p_dp for a positive record, (1 + p_dp) p_rn for a negative one; both without a gradient
        p_dp = p s,   p_rn = (1 - p) / (1 - p + p s)

    p_dp is the probability that an impression is positive and its label late, p_rn the probability that a negative
    record is rightly negative. Labels, logits of p and of s, and weights are float32[B].

    Caveat: the authors train a classifier for p_dp and one for p_rn, ahead, on old data whose labels are all known.
    Here both follow from the model's own p and from s, which is learned from the stream itself.

    Source: Yang et al., Capturing Delayed Feedback in Conversion Rate Prediction via Elapsed-Time Sampling, AAAI 2021.
    """
    p, s = tf.stop_gradient(tf.sigmoid(logits)), tf.stop_gradient(tf.sigmoid(late_logits))
    # 1 - sigmoid(z) is sigmoid(-z), which does not round to 0: p_rn stays finite where s is near 0 and p near 1.
    negative = tf.stop_gradient(tf.sigmoid(-logits))
    p_rn = tf.math.divide_no_nan(negative, negative + p * s)
    return (1 + p * s) * tf.where(labels > 0, tf.ones_like(p_rn), p_rn)


def lateness_loss(labels: tf.Tensor, late: tf.Tensor, late_logits: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Computes the cross entropy of `late` over the positive records, of which each positive impression has one.

    The result is the sum over the positive records over the weight of all records; 0 if no record has a weight.
    """
    losses = labels * tf.nn.sigmoid_cross_entropy_with_logits(labels=late, logits=late_logits)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))


def _standardized(x: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Returns float32[B, n] of weighted mean 0 and deviation 1; its gradient is passed on to x as it is."""
    # New embeddings are so small that a network on them would learn nothing in its first hundreds of steps. The
    # gradient of the division would be so large that s, and not p, would train them.
    mean, variance, _ = batch_moments(x, weight)
    return x + tf.stop_gradient((x - mean) * tf.math.rsqrt(variance + _EPSILON) - x)
