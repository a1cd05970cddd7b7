import pytest
import tensorflow as tf

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EstimatorSpec, RunConfig, own_loop
from ctr_trainer.system.messages.errors import UserError
from tests import small

tf1 = tf.compat.v1


def _model_fn(features, labels, mode, params):
    logits = tf.reduce_sum(features["embedding"], [1, 2]) + tf1.get_variable("bias", [])
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, tf1.train.get_global_step())
    return EstimatorSpec(mode, {"logits": logits}, loss, train_op)


def _train(data, model_dir, epochs, restores=True):
    def input_fn(position):
        return BatchReader(data, 16, epochs=epochs, position=position)

    with own_loop(_model_fn, input_fn, str(model_dir), RunConfig(threads=1)) as loop:
        directory = loop.checkpoint_dir if restores else None
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=directory, hooks=loop.hooks, save_checkpoint_secs=None
        ) as session:
            while not session.should_stop():
                session.run(loop.train_op)


def test_a_session_that_does_not_restore_the_dense_variables_of_the_rows_is_refused(tmp_path):
    data = small.make(tmp_path, rows=64)
    _train(data, tmp_path / "model", epochs=1)
    with pytest.raises(UserError, match=r"dense variables of step 0, and the rows of .*model are of step 4: open it"):
        _train(data, tmp_path / "model", epochs=2, restores=False)
    _train(data, tmp_path / "model", epochs=2)
    assert (tmp_path / "model" / "checkpoints" / "step-0000000008" / "manifest.json").exists()
