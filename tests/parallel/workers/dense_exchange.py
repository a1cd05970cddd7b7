"""Two workers train `(x . w - y)^2` with TrainOp in many ways; each writes what its w became after each step.

First by the sum in the memory of the host, then by Horovod. Three workers only average their w; four workers on two
hosts sum within each host first.

python dense_exchange.py OUT
"""

import functools
import sys

import numpy as np
import tensorflow as tf

from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.estimator.training import DenseStep
from ctr_trainer.models.layers.dropout import micro_batch
from ctr_trainer.ranks import dense_exchange, distributed
from ctr_trainer.system.measuring.clock import Clock
from tests.parallel.workers.dense_batches import ALL, PADDED, SPLIT, SPLIT_OF_HOSTS, START, STEPS

tf1 = tf.compat.v1
RATE = 0.1


class Features(dict):
    """What TrainOp reads of `FedFeatures`, without rows."""

    def __init__(self, weight):
        super().__init__(weight=weight)
        self.placeholders = []


def train(train_op, batches, settled_after=(), exchange="auto"):
    """Returns w after each step, float32[steps, 2]; `settle` runs after the steps `settled_after`, and at the end."""
    with tf.Graph().as_default():
        x, y, weight = (tf1.placeholder(tf.float32, shape) for shape in ([2, 2], [2], [2]))
        w = tf1.get_variable("w", initializer=np.array(START, np.float32))
        losses = tf.square(tf.linalg.matvec(x, w) - y)
        loss = tf.math.divide_no_nan(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))
        features = Features(weight)
        step = DenseStep(train_op.build(loss, features, dense_exchange=exchange))
        number_of_batch = micro_batch()
        with tf1.Session(config=distributed.session_config(1)) as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            feeds = iter([{x: b[0], y: b[1], weight: b[2]} for b in batches])

            found, steps = [], len(batches) // train_op.accumulation_steps
            for number in range(1, steps + 1):
                for batch in range(1, step.micro_batches):
                    session.run(step.accumulate, {**next(feeds), number_of_batch: batch})
                session.run(step.train_op, next(feeds))
                step.end_step(session, number, Clock())
                if number in settled_after or number == steps:
                    step.settle(session)
                    settled = session.run(w)
                    step.settle(session)
                    np.testing.assert_array_equal(session.run(w), settled)
                found.append(session.run(w))
            assert session.run(tf1.train.get_global_step()) == steps
    return found


def train_in_all_ways(rank, train):
    """Returns a dict of way of training -> result of `train`."""
    sgd = dict(optimizer="sgd", learning_rate=RATE, scale_lr="none")
    mine, padded = SPLIT[rank], PADDED[rank]
    return {
        "split": train(TrainOp(**sgd), mine),
        "padded": train(TrainOp(**sgd), padded),
        "fp16": train(TrainOp(**sgd, fp16_allreduce=True), mine),
        "linear": train(TrainOp(optimizer="sgd", learning_rate=RATE, scale_lr="linear"), mine),
        "adagrad": train(TrainOp(**{**sgd, "optimizer": "adagrad"}), mine),
        "accumulated": train(TrainOp(**{**sgd, "optimizer": "adagrad"}, accumulation_steps=2), mine),
        "local": train(TrainOp(**sgd, dense_sync_steps=2), mine, settled_after=(2,)),
        "clipped": train(TrainOp(**sgd, clip_norm=0.5), mine),
    }


def train_apart(rank, train):
    """Returns what averaged variables become on three ranks, where the mean of equal values may round."""
    train_op = TrainOp(optimizer="sgd", learning_rate=RATE, scale_lr="none", dense_sync_steps=2)
    return {"local": train(train_op, SPLIT_OF_HOSTS[rank], settled_after=(1, 2, 3))}


def train_on_hosts(rank, train):
    """Returns a dict of optimizer -> result of `train`, on four ranks."""
    optimizers = {name: TrainOp(optimizer=name, learning_rate=RATE, scale_lr="none") for name in ("sgd", "adagrad")}
    return {name: train(optimizer, SPLIT_OF_HOSTS[rank]) for name, optimizer in optimizers.items()}


assert len(ALL) == STEPS
distributed.init(sums_by_host=True)
of_hosts = distributed.size() == 4
for exchange in ("auto", "horovod"):
    expected = "horovod" if exchange == "horovod" else "hosts" if of_hosts else "shared_memory"
    assert dense_exchange.exchange(exchange).way == expected
    trained = {2: train_in_all_ways, 3: train_apart, 4: train_on_hosts}[distributed.size()]
    found = trained(distributed.rank(), functools.partial(train, exchange=exchange))
    np.savez(f"{sys.argv[1]}/{exchange}-{distributed.rank()}.npz", **found)
