"""Inputs: a reader by what it says and what it leaves out, and datasets that are padded."""

import types

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.estimator import RunConfig
from ctr_trainer.estimator.batch_feed import BatchInput, connect
from ctr_trainer.estimator.built_model import build_step, refuse_unweighed
from ctr_trainer.estimator.built_step import BuiltStep
from ctr_trainer.estimator.inputs import padded, padded_input
from ctr_trainer.estimator.run_length import Epochs, RunLength
from ctr_trainer.features.columns import Label, SparseFeature
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.dense_exchange import share_of
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.system.measuring import latency as latencies
from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default():
        yield


def _dataset(rows, batch=8):
    x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    features = {
        "bag": tf.ragged.constant([[i] * (i % 3) for i in range(rows)], tf.int64, ragged_rank=1),
        "dense": x,
        "sparse": tf.sparse.from_dense(x),
        "word": x.astype(str),
    }
    return tf.data.Dataset.from_tensor_slices((features, x[:, 0])).batch(batch)


def _read(dataset, count):
    iterator = tf1.data.make_initializable_iterator(dataset)
    following = iterator.get_next()
    with tf1.Session() as session:
        session.run(iterator.initializer)
        return [session.run(following) for _ in range(count)]


def test_a_padded_dataset_goes_on_with_its_last_batch_at_a_weight_of_0():
    elements = _read(padded(_dataset(20)), 5)
    assert [weight for _, (weight, _) in elements] == [8, 8, 4, 0, 0]
    assert [has_next for _, (_, has_next) in elements] == [1, 1, 0, 0, 0]
    for (features, labels), _ in elements[2:]:
        np.testing.assert_array_equal(labels, [32, 34, 36, 38])
        np.testing.assert_array_equal(features["dense"][:, 1], [33, 35, 37, 39])
        assert features["bag"].to_list() == [[16], [17, 17], [], [19]]
        assert list(features["sparse"].dense_shape) == [4, 2]
        assert features["word"][3, 1] == b"39.0"


def test_a_batch_without_examples_is_no_end():
    sizes = [3, 0, 2]
    rows = tf.data.Dataset.from_generator(
        lambda: (np.ones(size, np.float32) for size in sizes), output_signature=tf.TensorSpec([None], tf.float32)
    )
    elements = _read(padded(rows), 4)
    assert [(len(x), weight, has_next) for x, (weight, has_next) in elements] == [
        (3, 3, 1),
        (0, 0, 1),
        (2, 2, 0),
        (2, 0, 0),
    ]


def test_a_dataset_without_a_batch_has_nothing_to_pad_with():
    with pytest.raises(tf.errors.OutOfRangeError):
        _read(padded(_dataset(0)), 1)


def test_the_training_ends_with_its_last_batch_and_metrics_count_no_padding():
    inputs, reads = padded_input(_dataset(20)), []
    inputs.count_reads(lambda: reads.append(len(reads)))
    weights, seen = inputs.weights(inputs.labels), []
    feed = connect(inputs, LocalStore(), RunConfig(), BuiltStep(tf.no_op(), RunLength(), {}, None))
    with tf1.train.MonitoredSession() as session:
        while not feed.has_ended:
            values, fetched = session.run([[inputs.labels, weights], feed.last_fetches])
            feed.train(feed.next(), fetched)
            seen.append(values)
    assert (feed.examples, reads) == (20, [0, 1, 2])
    assert [list(labels[:1]) for labels, _ in seen] == [[0], [16], [32]]
    np.testing.assert_array_equal(np.concatenate([weights for _, weights in seen]), np.ones(20))


@pytest.mark.parametrize(("own", "total", "expected"), [(3.0, 4.0, 0.75), (0.0, 4.0, 0.0), (0.0, 0.0, 0.0)])
def test_gradients_are_weighed_by_the_share_of_the_examples(own, total, expected):
    variable = tf1.get_variable("v", initializer=[0.0, 0.0])
    sparse = tf1.get_variable("s", initializer=[[1.0], [1.0], [1.0]])
    # The root's gradient at 0 is infinite, and 0 times that is none.
    loss = tf.reduce_sum(2 * variable) + tf.reduce_sum(tf.gather(sparse, [2, 0]) ** 2)
    loss += tf.sqrt(variable[0]) if own == 0 else 0.0
    gradients = tf.gradients(loss, [variable.handle, sparse.handle])
    dense, rows = (share_of(gradient, tf.constant(own), tf.constant(total)) for gradient in gradients)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        dense, rows = session.run([dense, rows])
    np.testing.assert_allclose(dense, [2 * expected] * 2)
    assert list(rows.indices) == ([2, 0] if own else [])
    np.testing.assert_allclose(rows.values, np.full((2 if own else 0, 1), 2 * expected))


def _step(**spec):
    """Returns the step of a model with one variable, whose input is a batch of eight examples."""
    loss = tf1.get_variable("v", initializer=1.0) ** 2
    made = {name: make(loss) for name, make in spec.items()}
    inputs = types.SimpleNamespace(weight=tf.constant(8.0), placeholders=(), fed=False)
    return build_step(EstimatorSpec(ModeKeys.TRAIN, loss=loss, **made), inputs, EmbeddingConfig(), RunLength())


def test_a_model_that_would_train_the_padding_is_refused():
    step = _step(train_op=lambda loss: distributed.optimizer(tf1.train.AdamOptimizer()).minimize(loss))
    with pytest.raises(UserError, match=r"would train on the zero-weight batches too.*EstimatorSpec\(mode, loss"):
        refuse_unweighed(step)


def test_a_model_that_keeps_moving_statistics_of_the_padding_is_refused():
    step = _step(optimizer=lambda loss: tf1.train.AdamOptimizer())
    refuse_unweighed(step)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, tf.no_op("moving_mean"))
    with pytest.raises(UserError, match="moving_mean of the model_fn updates moving statistics"):
        refuse_unweighed(step)


def test_an_input_that_is_no_dataset_is_refused():
    with pytest.raises(UserError, match=r"is for a tf\.data\.Dataset, and input_fn returned tuple"):
        padded_input(({"x": tf.ones([2])}, tf.ones([2])))


SPEC = FeatureSpec(name="s", label=Label("y"), dense=(), sparse=(SparseFeature("f", "f", 2, "f"),))


class Plain:
    """Three batches, and no more than a reader must have."""

    spec, statistics, batch_size = SPEC, {}, 4

    def __iter__(self):
        return iter("abc")


class Full(Plain):
    """Says all that a reader may."""

    steps, steps_per_epoch, steps_before, epochs = 3, 6, 9, 2

    def position_after(self, steps):
        return {"at": steps}


def _feed_of(reader):
    inputs = BatchInput(reader, reader.spec, reader.statistics)
    return inputs, connect(inputs, LocalStore(), RunConfig())


def test_what_a_reader_does_not_know_is_none():
    inputs, feed = _feed_of(Plain())
    assert [inputs.batches, inputs.batches_per_epoch, inputs.in_epochs, inputs.epochs] == [None] * 4
    assert (feed.is_live, feed.stream_state, feed.status_lines) == (False, None, ())
    assert feed.position_after(1) is None
    feed.committed({"at": 1})


def test_what_a_reader_knows_is_taken_from_it():
    inputs, feed = _feed_of(Full())
    assert (inputs.batches, inputs.batches_per_epoch, inputs.in_epochs, inputs.epochs) == (3, 6, Epochs(6, 9), 2)
    assert feed.position_after(5) == {"at": 5}


def test_each_batch_is_timed_by_itself(monkeypatch):
    """A batch that waits for a piece of the data to be read takes long, and the batches cut from that piece do not."""
    now = [0]
    monkeypatch.setattr(latencies, "time", types.SimpleNamespace(perf_counter_ns=lambda: now[0]))

    def pieces():
        for batch in range(100):
            now[0] += 1000 * (500 if batch % 25 == 0 else 10 + batch)
            yield batch

    latency = Latency("OpsReadSample")
    assert len(list(latency.each(pieces()))) == 100
    assert latency.percentiles() == {"count": 100, "P50": 62, "P95": 108, "P99": 500, "Max": 500}
