"""W1 without this package's embeddings, in two ways. A worker prints its examples/s as JSON.

`in_graph`: the embeddings are variables in the graph, trained by TensorFlow's own sparse Adagrad. Under horovodrun this
is the naive port, in which `hvd.DistributedOptimizer` gathers the sparse gradients of all workers.
`tower`: the dense tower of `ours.py` alone, fed the same rows each step, which are not updated. Its speed is the limit
of any worker on this core, as lookups and updates cost nothing.
"""

import argparse
import json
import os
import time
from collections.abc import Callable


def measure(step: Callable[[], object], flags: argparse.Namespace) -> None:
    """Runs the steps and prints the result."""
    for _ in range(flags.warmup):
        step()
    start = time.perf_counter()
    for _ in range(flags.steps):
        step()
    seconds = time.perf_counter() - start
    print(json.dumps({"examples_per_sec": flags.steps * flags.batch_size / seconds}))


def in_graph(flags: argparse.Namespace, rank: int, workers: int) -> None:
    import tensorflow as tf

    from ctr_trainer.bench import workload as w1

    tf1 = tf.compat.v1
    tf1.disable_eager_execution()
    ids, dense, labels = w1.arrays(flags.batch_size, rank)
    dataset = tf.data.Dataset.from_tensor_slices((ids.astype("int32"), dense, labels[..., None])).repeat().prefetch(4)
    ids, dense, labels = tf1.data.make_one_shot_iterator(dataset).get_next()

    normal = tf1.random_normal_initializer(stddev=w1.STDDEV)
    embedding = tf1.get_variable("embedding", [w1.VOCABULARY, w1.DIM], initializer=normal)
    linear = tf1.get_variable("linear", [w1.VOCABULARY, 1], initializer=tf1.zeros_initializer())
    rows, first = tf.gather(embedding, ids), tf.gather(linear, ids)[..., 0]
    total = tf.reduce_sum(rows, 1)
    second = 0.5 * tf.reduce_sum(total * total - tf.reduce_sum(rows * rows, 1), 1, keepdims=True)
    hidden = tf.concat([tf.reshape(rows, [flags.batch_size, w1.FIELDS * w1.DIM]), dense], 1)
    for index, units in enumerate((*w1.HIDDEN_UNITS, 1)):
        kernel = tf1.get_variable(f"kernel_{index}", [hidden.shape[-1], units])
        bias = tf1.get_variable(f"bias_{index}", [units], initializer=tf1.zeros_initializer())
        hidden = tf.matmul(hidden, kernel) + bias
        if units > 1:
            hidden = tf.nn.relu(hidden)
    logits = hidden + second + tf.reduce_sum(first, 1, keepdims=True)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    optimizer = tf1.train.AdagradOptimizer(w1.LEARNING_RATE, initial_accumulator_value=w1.INITIAL_ACCUMULATOR)
    hooks = []
    if workers > 1:
        from ctr_trainer.ranks import distributed

        distributed.init()
        optimizer, hooks = distributed.optimizer(optimizer), [distributed.broadcast_hook()]
    train_op = optimizer.minimize(loss, global_step=tf1.train.get_or_create_global_step())
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf1.train.MonitoredSession(tf1.train.ChiefSessionCreator(config=config), hooks) as session:
        measure(lambda: session.run(train_op), flags)


def tower(flags: argparse.Namespace) -> None:
    import numpy as np
    import tensorflow as tf

    from ctr_trainer.bench import workload as w1
    from ctr_trainer.estimator.optimize import TrainOp
    from ctr_trainer.features.tensors import FedFeatures
    from ctr_trainer.graph_notes.estimator_spec import ModeKeys
    from ctr_trainer.graph_notes.notes import notes
    from ctr_trainer.models import deepfm
    from ctr_trainer.models.params import ModelParams
    from ctr_trainer.ranks import distributed

    tf1 = tf.compat.v1
    distributed.init()
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        batch = next(iter(w1.W1Batches(flags.batch_size, 1)))
        features = FedFeatures(w1.spec(), {}, flags.batch_size)
        params = ModelParams(TrainOp("adagrad", w1.LEARNING_RATE), w1.HIDDEN_UNITS)
        spec = deepfm.model_fn(features, features.labels, ModeKeys.TRAIN, params)
        rng = np.random.default_rng(0)
        feed = {row: w1.STDDEV * rng.standard_normal(row.shape, dtype=np.float32) for row in features.placeholders}
        feed |= {features.labels: batch.labels, features.weights: batch.weights, features.dense: batch.dense}
        fetches = [spec.train_op, notes().row_training.gradients]
        with tf1.Session(config=distributed.session_config(1, "none")) as session:
            session.run(tf1.global_variables_initializer())
            measure(lambda: session.run(fetches, feed), flags)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("in_graph", "tower"))
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--cores", default="0", help="the core of each worker, such as 0,1")
    flags = parser.parse_args()
    rank, workers = (int(os.environ.get(f"HOROVOD_{name}", default)) for name, default in (("RANK", 0), ("SIZE", 1)))
    os.sched_setaffinity(0, {int(flags.cores.split(",")[rank])})
    if flags.kind == "tower":
        tower(flags)
    else:
        in_graph(flags, rank, workers)


if __name__ == "__main__":
    main()
