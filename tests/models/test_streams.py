"""The losses of models that average several streams, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.models.fcn import tri_bce
from ctr_trainer.models.head import binary_head
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import logit_of_mean, self_distillation
from ctr_trainer.models.tabm import mean_of_losses
from tests.layers.run import run

LOGITS = np.float32([[0.5], [-1.0], [0.2]])
STREAMS = [np.float32([[-0.5], [1.0], [-0.2]]), np.float32([[1.5], [-3.0], [-0.1]])]
WEIGHT = np.float32([1, 2, 0])


def _loss(target, z):
    p = 1 / (1 + np.exp(-z[:, 0].astype(np.float64)))
    return np.average(-target * np.log(p) - (1 - target) * np.log(1 - p), weights=WEIGHT)


def test_streams_learn_from_their_mean_which_gets_no_gradient():
    def make(z, first, second, weight):
        loss = self_distillation({"weight": weight}, ModeKeys.TRAIN, z, [first, second])
        assert tf.gradients(loss, z) == [None]
        return loss

    loss, _ = run(make, LOGITS, *STREAMS, WEIGHT)
    target = 1 / (1 + np.exp(-LOGITS[:, 0].astype(np.float64)))
    np.testing.assert_allclose(loss, sum(_loss(target, z) for z in STREAMS), rtol=1e-5)


def test_only_training_has_this_loss():
    assert self_distillation({}, ModeKeys.EVAL, None, []) is None


LABELS = np.float32([1, 0, 1])


def _trained(labels, weight, logits, replaced, **params):
    """Returns the loss that `binary_head` trains, with another one in place of its own."""
    losses = []
    params = ModelParams(train_op_fn=lambda loss, features: losses.append(loss) or tf.no_op(), **params)
    binary_head({"weight": weight}, labels, ModeKeys.TRAIN, params, logits, replaced)
    return losses[0]


@pytest.mark.parametrize("several", [False, True])
def test_a_stream_whose_loss_is_above_the_models_learns_on_its_own(several):
    def make(z, first, second, labels, weight):
        labels = {"click": labels, "buy": 1 - labels} if several else labels
        params = dict(label="click" if several else "", positive_weight=3.0)
        return _trained(labels, weight, z, tri_bce(z, [first, second]), **params)

    def loss_of(z):
        p = 1 / (1 + np.exp(-z[:, 0].astype(np.float64)))
        return np.average(-3 * LABELS * np.log(p) - (1 - LABELS) * np.log(1 - p), weights=WEIGHT)

    found, _ = run(make, LOGITS, *STREAMS, LABELS, WEIGHT)
    whole, (lagging, leading) = loss_of(LOGITS), map(loss_of, STREAMS)
    assert leading < whole < lagging
    np.testing.assert_allclose(found, whole + (lagging - whole) * lagging, rtol=1e-5)


def test_the_logit_of_a_mean_holds_where_probabilities_round_to_zero_or_one():
    a, b = np.float32([[0.3], [80.0], [-200.0]]), np.float32([[-1.2], [90.0], [-200.0]])
    found, _ = run(lambda *streams: logit_of_mean(streams), a, b)
    p = np.mean([1 / (1 + np.exp(-a[0, 0])), 1 / (1 + np.exp(-b[0, 0]))])
    np.testing.assert_allclose(found[:, 0], [np.log(p / (1 - p)), 80 + np.log(2), -200], rtol=1e-4)


def test_an_ensemble_learns_from_the_mean_of_its_members_losses():
    def make(z, first, second, labels, weight):
        return _trained(labels, weight, z, mean_of_losses(z, [first, second]))

    found, _ = run(make, LOGITS, *STREAMS, LABELS, WEIGHT)
    np.testing.assert_allclose(found, np.mean([_loss(LABELS, z) for z in STREAMS]), rtol=1e-5)
