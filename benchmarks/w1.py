"""Workload W1 in three ways. A worker, alone or under horovodrun, prints its examples/s as JSON.

`ours`: through the Estimator, with its hooks and log.
`in_graph`: the embeddings are variables in the graph, trained by TensorFlow's own sparse Adagrad. Under horovodrun this
is the naive port, in which `hvd.DistributedOptimizer` gathers the sparse gradients of all workers.
`tower`: the dense tower of `ours` alone, fed the same rows each step, which are not updated. Its speed is the limit of
any worker on this core, as lookups and updates cost nothing.

Examples: python benchmarks/w1.py ours --cores=0
          horovodrun -np 2 python benchmarks/w1.py ours --cores=0,1 --embedding_service=shared --dense_sync_steps=30
"""

import argparse
import contextlib
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable

RSS_FROM_STEP = 2000


def measure(step: Callable[[], object], flags: argparse.Namespace) -> None:
    """Runs the steps and prints the result."""
    for _ in range(flags.warmup):
        step()
    start = time.perf_counter()
    for _ in range(flags.steps):
        step()
    seconds = time.perf_counter() - start
    print(json.dumps({"examples_per_sec": flags.steps * flags.batch_size / seconds}))


def ours(flags: argparse.Namespace) -> None:
    import psutil
    import tensorflow as tf

    from ctr_trainer.bench import worker as w1
    from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
    from ctr_trainer.estimator.optimize import TrainOp
    from ctr_trainer.models import deepfm
    from ctr_trainer.models.params import ModelParams
    from ctr_trainer.ranks import dense_exchange, distributed
    from ctr_trainer.settings.optimizers import RowAdagrad

    class Clock(tf.compat.v1.train.SessionRunHook):
        """The times at which steps began, and the resident memory at every 1,000th step."""

        def __init__(self):
            self.times, self.rss = [], []

        def before_run(self, run_context):
            self.times.append(time.perf_counter())
            if len(self.times) > RSS_FROM_STEP and len(self.times) % 1000 == 0:
                self.rss.append(psutil.Process().memory_info().rss)

        def end(self, session):
            self.times.append(time.perf_counter())

    # Several workers take a core each, as in any job; the service and the background threads may use all cores.
    distributed.init(pin_cores=True, steps_exchange=dense_exchange.is_by_horovod("auto"))
    dense_exchange.choose("auto")
    clock = Clock()
    train_op = TrainOp("adagrad", w1.LEARNING_RATE, w1.LEARNING_RATE, dense_sync_steps=flags.dense_sync_steps)
    embedding = EmbeddingConfig(
        service=flags.embedding_service,
        learning_rate=w1.LEARNING_RATE,
        optimizer=RowAdagrad(initial_accumulator=w1.INITIAL_ACCUMULATOR),
        stddev=w1.STDDEV,
        sync_steps=30,
        overlap_lookup=flags.overlap_lookup,
    )
    with contextlib.ExitStack() as stack:
        model_dir = stack.enter_context(tempfile.TemporaryDirectory())
        if flags.service_core is not None:
            embedding = _with_service(stack, embedding, flags.service_core, model_dir)
        config = RunConfig(
            threads=1,
            save_checkpoints_steps=0,
            prefetch_batches=flags.prefetch_batches,
            mixed_precision=flags.mixed_precision,
            embedding=embedding,
        )
        estimator = Estimator(deepfm.model_fn, model_dir, ModelParams(train_op, w1.HIDDEN_UNITS), config)
        batches = w1.W1Batches(flags.batch_size, flags.warmup + flags.steps + 1, distributed.rank())
        estimator.train(lambda: batches, hooks=[clock])
    seconds = clock.times[flags.warmup + flags.steps] - clock.times[flags.warmup]
    result = {"examples_per_sec": flags.steps * flags.batch_size / seconds}
    if len(clock.rss) > 1:
        result["rss_growth_percent"] = 100 * (clock.rss[-1] / clock.rss[0] - 1)
    print(json.dumps(result))


def _with_service(stack, embedding, core, directory):
    """Returns the settings for a service on this core, which ends with the `ExitStack`."""
    from ctr_trainer.embedding.service.local_service import LocalServices
    from ctr_trainer.settings.embedding_config import SecurityFiles

    (service,) = stack.enter_context(LocalServices(1, directory, timeout=60).running({core}))
    token = os.path.join(directory, "token")
    with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(service.token)
    return dataclasses.replace(embedding, service=service.address, security=SecurityFiles(token))


def in_graph(flags: argparse.Namespace) -> None:
    import tensorflow as tf

    from ctr_trainer.bench import worker as w1

    tf1 = tf.compat.v1
    tf1.disable_eager_execution()
    rank, workers = _rank_and_workers()
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

    from ctr_trainer.bench import worker as w1
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


def _rank_and_workers() -> tuple[int, int]:
    return int(os.environ.get("HOROVOD_RANK", 0)), int(os.environ.get("HOROVOD_SIZE", 1))


KINDS = {"ours": ours, "in_graph": in_graph, "tower": tower}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument(
        "--cores", default="0", help="core of each worker, such as 0,1; a lone worker of `ours` has all"
    )
    of_ours = parser.add_argument_group("of `ours`")
    of_ours.add_argument("--prefetch_batches", type=int, default=0)
    of_ours.add_argument("--embedding_service", default="auto")
    of_ours.add_argument("--service_core", type=int, help="the core of a service for a lone worker; default none")
    of_ours.add_argument("--dense_sync_steps", type=int, default=1)
    of_ours.add_argument("--overlap_lookup", action="store_true")
    of_ours.add_argument("--mixed_precision", default="none")
    flags = parser.parse_args()
    cores = [int(core) for core in flags.cores.split(",")]
    os.sched_setaffinity(0, cores if flags.kind == "ours" else {cores[_rank_and_workers()[0]]})
    KINDS[flags.kind](flags)


if __name__ == "__main__":
    main()
