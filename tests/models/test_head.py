import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.graph_notes.estimator_spec import ModeKeys
from ctr_trainer.messages.errors import UserError
from ctr_trainer.models.head import binary_head
from ctr_trainer.models.params import ModelParams

tf1 = tf.compat.v1
LOGITS, LABELS, WEIGHTS = [[0.0], [1.0], [-2.0]], [1.0, 0.0, 1.0], [1.0, 2.0, 0.0]


def _head(mode, **params):
    """-> (loss or None, probabilities)."""
    with tf.Graph().as_default():
        train_op = lambda loss, features: tf.no_op()  # noqa: E731
        labels = None if mode == ModeKeys.PREDICT else tf.constant(LABELS)
        features = {"weight": tf.constant(WEIGHTS)}
        spec = binary_head(features, labels, mode, ModelParams(train_op, **params), tf.constant(LOGITS))
        with tf1.Session() as session:
            loss = None if spec.loss is None else session.run(spec.loss)
            return loss, session.run(spec.predictions["probabilities"])


def _log_loss(positive_weight=1.0):
    losses = [positive_weight * np.log(2), np.log(1 + np.e)]  # of the two examples that count
    return (losses[0] + 2 * losses[1]) / 3


def test_a_positive_example_counts_by_its_class_weight_while_training_only():
    assert _head(ModeKeys.TRAIN)[0] == pytest.approx(_log_loss(), rel=1e-6)
    assert _head(ModeKeys.TRAIN, positive_weight=4.0)[0] == pytest.approx(_log_loss(4.0), rel=1e-6)
    assert _head(ModeKeys.EVAL, positive_weight=4.0)[0] == pytest.approx(_log_loss(), rel=1e-6)


@pytest.mark.parametrize("mode", [ModeKeys.EVAL, ModeKeys.PREDICT])
def test_predictions_are_calibrated_for_the_negatives_left_out(mode):
    p, w = 1 / (1 + np.exp(-np.ravel(LOGITS))), 0.1
    np.testing.assert_allclose(_head(mode, negative_sampling=w)[1], p / (p + (1 - p) / w), rtol=1e-5)
    np.testing.assert_allclose(_head(mode)[1], p, rtol=1e-6)


def test_training_goes_on_with_the_probability_among_the_sampled():
    assert _head(ModeKeys.TRAIN, negative_sampling=0.1)[0] == pytest.approx(_log_loss(), rel=1e-6)


@pytest.mark.parametrize(
    "params", [dict(positive_weight=0.0), dict(negative_sampling=0.0), dict(negative_sampling=1.1)]
)
def test_weights_and_shares_out_of_range_are_refused(params):
    with pytest.raises(UserError, match="above 0"):
        ModelParams(**params)
