"""Workload W1 without this package's rows, for `scaling.py`, which starts it.

`in_graph`: the embeddings are variables in the graph, trained by TensorFlow's sparse Adagrad. With horovodrun, this is
the naive port, in which `hvd.DistributedOptimizer` gathers the sparse gradients of all workers.
`tower`: only the dense tower of our DeepFM, which gets the same rows in each step and does not update them. Its speed
is the upper limit of a worker on this core, as lookups and updates cost nothing.
"""

import os
import time
from collections.abc import Callable, Sequence

import numpy as np
import sides
import tensorflow as tf
import worker as w1

from ctr_trainer import ModeKeys, TrainOp
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.models import deepfm
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed

tf1 = tf.compat.v1
RANK, WORKERS = int(os.environ.get("HOROVOD_RANK", 0)), int(os.environ.get("HOROVOD_SIZE", 1))
BATCH_SIZE, WARMUP_STEPS = 1024, 20


def examples_per_sec(step: Callable[[], object], steps: int) -> float:
    """Runs the steps, and returns the examples per second."""
    for _ in range(WARMUP_STEPS):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return steps * BATCH_SIZE / (time.perf_counter() - start)


def in_graph(steps: int, hidden_units: Sequence[int]) -> float:
    tf1.disable_eager_execution()
    ids, dense, labels = w1.arrays(BATCH_SIZE, RANK)
    dataset = tf.data.Dataset.from_tensor_slices((ids.astype("int32"), dense, labels[..., None])).repeat().prefetch(4)
    ids, dense, labels = tf1.data.make_one_shot_iterator(dataset).get_next()

    normal = tf1.random_normal_initializer(stddev=w1.STDDEV)
    embedding = tf1.get_variable("embedding", [w1.VOCABULARY, w1.DIM], initializer=normal)
    linear = tf1.get_variable("linear", [w1.VOCABULARY, 1], initializer=tf1.zeros_initializer())
    rows, first = tf.gather(embedding, ids), tf.gather(linear, ids)[..., 0]
    total = tf.reduce_sum(rows, 1)
    second = 0.5 * tf.reduce_sum(total * total - tf.reduce_sum(rows * rows, 1), 1, keepdims=True)
    hidden = tf.concat([tf.reshape(rows, [BATCH_SIZE, w1.FIELDS * w1.DIM]), dense], 1)
    for index, units in enumerate((*hidden_units, 1)):
        kernel = tf1.get_variable(f"kernel_{index}", [hidden.shape[-1], units])
        bias = tf1.get_variable(f"bias_{index}", [units], initializer=tf1.zeros_initializer())
        hidden = tf.matmul(hidden, kernel) + bias
        if units > 1:
            hidden = tf.nn.relu(hidden)
    logits = hidden + second + tf.reduce_sum(first, 1, keepdims=True)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    optimizer = tf1.train.AdagradOptimizer(w1.LEARNING_RATE, initial_accumulator_value=w1.INITIAL_ACCUMULATOR)
    hooks = []
    if WORKERS > 1:
        distributed.init()
        optimizer, hooks = distributed.optimizer(optimizer), [distributed.broadcast_hook()]
    train_op = optimizer.minimize(loss, global_step=tf1.train.get_or_create_global_step())
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf1.train.MonitoredSession(tf1.train.ChiefSessionCreator(config=config), hooks) as session:
        return examples_per_sec(lambda: session.run(train_op), steps)


def tower(steps: int, hidden_units: Sequence[int]) -> float:
    distributed.init()
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        batch = next(iter(w1.W1Batches(BATCH_SIZE, 1)))
        features = FedFeatures(w1.spec(), {}, BATCH_SIZE)
        params = ModelParams(TrainOp("adagrad", w1.LEARNING_RATE), tuple(hidden_units))
        spec = deepfm.model_fn(features, features.labels, ModeKeys.TRAIN, params)
        rng = np.random.default_rng(0)
        feed = {row: w1.STDDEV * rng.standard_normal(row.shape, dtype=np.float32) for row in features.placeholders}
        feed |= {features.labels: batch.labels, features.weights: batch.weights, features.dense: batch.dense}
        step = spec.train_op()
        fetches = [step.train_op, step.row_gradients]
        with tf1.Session(config=distributed.session_config(1, "none")) as session:
            session.run(tf1.global_variables_initializer())
            return examples_per_sec(lambda: session.run(fetches, feed), steps)


KINDS = {"in_graph": in_graph, "tower": tower}


def main() -> None:
    parser = sides.parser(__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--steps", type=int, default=200, help="steps measured, after 20 others")
    parser.add_argument("--hidden_units", type=sides.integers, default=w1.HIDDEN_UNITS, help="of the tower")
    parser.add_argument("--result_dir", required=True, help="directory where rank r writes rank-r.json")
    flags = parser.parse_args()
    os.sched_setaffinity(0, {RANK})
    w1.write(flags.result_dir, {"rank": RANK, "examples_per_sec": KINDS[flags.kind](flags.steps, flags.hidden_units)})


if __name__ == "__main__":
    main()
