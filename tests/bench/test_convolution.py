"""The convolutional network of `bench network`."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.bench import models, reference_networks, worker
from ctr_trainer.graph_notes.estimator_spec import ModeKeys
from ctr_trainer.models.registry import find_model
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1
RESNET50_PARAMETERS, RESNET50_PRODUCTS = 25.6e6, 4.1e9


def _features(examples):
    rng = np.random.default_rng(1)
    shapes = {"embedding": (examples, worker.FIELDS, worker.DIM), "dense": (examples, worker.DENSE)}
    features = {name: tf.constant(rng.standard_normal(shape), tf.float32) for name, shape in shapes.items()}
    return {**features, "weight": tf.ones([examples])}


def _build(channels, examples=8, train_op_fn=lambda loss, features: tf.no_op()):
    params = models.Params(train_op_fn=train_op_fn, channels=channels)
    labels = tf.constant(np.arange(examples) % 2, tf.float32)
    return models.model_fn(_features(examples), labels, ModeKeys.TRAIN, params)


@pytest.mark.parametrize("channels", [1, 5])
def test_its_parameters_are_those_that_are_counted_and_the_last_layers(channels):
    with tf.Graph().as_default():
        _build(channels)
        variables = tf1.trainable_variables()
    last = 2 * channels + worker.DENSE + 1
    assert (
        sum(variable.shape.num_elements() for variable in variables) == reference_networks.parameters(channels) + last
    )
    assert reference_networks.parameters(1) == 198 + 24
    assert reference_networks.parameters(18) == 198 * 18**2 + 24 * 18


@pytest.mark.parametrize("scale", [1, 100, 400])
def test_it_has_about_as_many_parameters_as_are_asked_for(scale):
    channels = reference_networks.channels_for(RESNET50_PARAMETERS / scale)
    assert reference_networks.parameters(channels) == pytest.approx(RESNET50_PARAMETERS / scale, rel=0.05)
    with pytest.raises(UserError, match="100 parameters are too few for convolutions"):
        reference_networks.channels_for(100)


def test_a_parameter_takes_part_in_as_many_products_as_one_of_resnet50():
    with tf.Graph().as_default() as graph:
        _build(18, examples=1)
        convolutions = [op for op in graph.get_operations() if op.type == "Conv2D"]
        products = sum(
            op.inputs[1].shape.num_elements() * op.outputs[0].shape[1] * op.outputs[0].shape[2] for op in convolutions
        )
    found, known = products / reference_networks.parameters(18), RESNET50_PRODUCTS / RESNET50_PARAMETERS
    assert found == pytest.approx(known, rel=0.05)


def test_training_steps_move_every_variable_and_lower_the_loss():
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        spec = _build(4, 32, lambda loss, _: tf1.train.AdagradOptimizer(0.05).minimize(loss))
        session.run(tf1.global_variables_initializer())
        before = session.run(tf1.trainable_variables())
        first, _ = session.run([spec.loss, spec.train_op])
        after = session.run(tf1.trainable_variables())
        assert all(not np.array_equal(old, new) for old, new in zip(before, after, strict=True))
        for _ in range(20):
            last, _ = session.run([spec.loss, spec.train_op])
    assert np.isfinite(last) and last < first


def test_it_is_found_by_its_name_as_a_users_own_model_is():
    found = find_model(reference_networks.MODEL)
    assert found.model_fn is models.model_fn and found.params_class is models.Params
    with pytest.raises(UserError, match="^channels=0: must be at least 1"):
        models.Params(channels=0)
