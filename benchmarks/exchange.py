"""What the exchange of dense gradients costs: W1's dense tower on two workers, a core each, the ways in turn.

CPU is what both threads of a worker, TensorFlow's and Horovod's, take a step; `none` is the tower alone.
`distributed_optimizer` and `grouped` are Horovod's own, in a plain script; `horovod` is the package's use of
`hvd.DistributedOptimizer`, exact for unequal numbers of examples. The dense variables of `every_30_steps` are averaged
in shared memory; all but this and `shared_memory` goes through Horovod.
The last line is JSON. Other settings of Horovod are measured by its variables, as HOROVOD_CYCLE_TIME=5.

With --hosts=2 there are two workers on each of two hosts, which this machine imitates (-H localhost:2,127.0.0.1:2);
`hosts` sums within each host in shared memory, then by `hvd.DistributedOptimizer` between one worker per host.

Examples:
  python benchmarks/exchange.py --rounds 5
  python benchmarks/exchange.py --hosts 2 --rounds 5
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

WAYS = (
    *("none", "distributed_optimizer", "grouped", "horovod", "horovod_fp16", "overlapped", "shared_memory"),
    "every_30_steps",
)
WAYS_OF_HOSTS = ("none", "distributed_optimizer", "horovod", "hosts")
_CHOSEN = {"shared_memory": "auto", "every_30_steps": "auto", "hosts": "hosts"}


def worker(flags):
    os.sched_setaffinity(0, {int(os.environ["HOROVOD_LOCAL_RANK"]) % os.cpu_count()})
    import tensorflow as tf

    from ctr_trainer.ranks import distributed

    tf.get_logger().setLevel("ERROR")
    distributed.init(sums_by_host="hosts" in flags.ways)
    runs = {way: _build(way) for way in flags.ways}
    for run in runs.values():
        _measure(run, 20)
    found = {way: [] for way in flags.ways}
    for _ in range(flags.rounds):
        for way, run in runs.items():
            distributed.barrier("ready")
            found[way].append(_measure(run, flags.steps))
    if distributed.is_chief():
        print(json.dumps(found))


def _build(way):
    """-> f() that runs one step."""
    import numpy as np
    import tensorflow as tf

    from ctr_trainer.bench import workload as w1
    from ctr_trainer.estimator.optimize import TrainOp
    from ctr_trainer.estimator.optimizer_step import OptimizerStep
    from ctr_trainer.features.fed import FedFeatures
    from ctr_trainer.graph_notes import row_training, step_plan
    from ctr_trainer.layers.mlp import dense, mlp
    from ctr_trainer.ranks import dense_exchange, distributed

    tf1 = tf.compat.v1
    batch_size = 1024
    batch = w1.W1Batches(batch_size, 0)
    dense_exchange.choose(_CHOSEN.get(way, "horovod"))
    with tf.Graph().as_default():
        features = FedFeatures(batch.spec, {}, batch_size)
        inputs = [tf.reshape(features["embedding"], [batch_size, w1.FIELDS * w1.DIM]), features["dense"]]
        logits = tf.squeeze(dense(mlp(inputs, w1.HIDDEN_UNITS), 1, "logits"), 1)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=features.labels, logits=logits)
        loss = tf.reduce_mean(losses)
        if way in ("none", "distributed_optimizer", "grouped"):
            train_op, rows = _with_optimizer(way, loss, features)
            step = None
        else:
            settings = dict(fp16_allreduce=way == "horovod_fp16", overlap_allreduce=way == "overlapped")
            train_op = TrainOp(dense_sync_steps=30 if way == "every_30_steps" else 1, **settings)(loss, features)
            rows, step = row_training.current().gradients, OptimizerStep(train_op, step_plan.current())
        session = tf1.Session(config=distributed.session_config(1))
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
    ids, numbers, labels = w1.arrays(batch_size, distributed.rank())
    feed = {row: np.random.default_rng(0).normal(size=row.shape).astype(np.float32) for row in features.placeholders}
    feed |= {features.dense: numbers[0], features.labels: labels[0], features.weights: np.ones(batch_size, np.float32)}

    class Fed:
        def run(self, operation):
            session.run([operation, rows], feed)

    fed, count = Fed(), 0

    def run():
        nonlocal count
        count += 1
        if step is None:
            fed.run(train_op)
            return
        step(fed)
        if way == "every_30_steps" and count % 30 == 0:
            step.settle(session)

    return run


def _with_optimizer(way, loss, features):
    """-> (train_op, the rows' gradients) without the package's exchange."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from ctr_trainer.ranks import distributed

    tf1 = tf.compat.v1
    optimizer = tf1.train.AdagradOptimizer(0.01)
    variables, rows = tf1.trainable_variables(), features.placeholders
    if way == "distributed_optimizer":
        optimizer = distributed.optimizer(optimizer, rows)
        pairs = optimizer.compute_gradients(loss, variables + rows)
        return optimizer.apply_gradients(pairs[: len(variables)]), [g for g, _ in pairs[len(variables) :]]
    gradients = tf.gradients(loss, variables + rows)
    dense = gradients[: len(variables)]
    if way == "grouped":
        dense = hvd.grouped_allreduce(dense, op=hvd.Average)
    return optimizer.apply_gradients(list(zip(dense, variables, strict=True))), gradients[len(variables) :]


def _measure(run, steps):
    """-> (CPU ms a step, wall ms a step)."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(steps):
        run()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1000 * cpu / steps, 1000 * seconds / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of all ways, in turn")
    parser.add_argument("--steps", type=int, default=100, help="of a way in a round")
    parser.add_argument("--ways", nargs="+", choices=(*WAYS, "hosts"), help="default: all that the hosts have")
    parser.add_argument("--hosts", type=int, default=1, choices=(1, 2), help="of two workers each")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        worker(flags)
        return
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    flags.ways = flags.ways or list(WAYS if flags.hosts == 1 else WAYS_OF_HOSTS)
    job = ["-np", "2"] if flags.hosts == 1 else ["-np", "4", "-H", "localhost:2,127.0.0.1:2"]
    command = ["horovodrun", *job, "--gloo", sys.executable, __file__, "--worker"]
    command += [f"--rounds={flags.rounds}", f"--steps={flags.steps}", "--ways", *flags.ways]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment["PATH"]])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    lines = [line.partition(":")[2] for line in done.stdout.splitlines() if line.startswith("[0]<stdout>:{")]
    if done.returncode or not lines:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    found = json.loads(lines[-1])
    print(f"{'':<24}{'CPU ms a step':>24}{'wall ms a step':>24}   (median, range of {flags.rounds})")
    medians = {}
    for way, figures in found.items():
        cells = []
        for values in zip(*figures, strict=True):
            cells.append(f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})")
        medians[way] = {
            name: round(statistics.median(values), 3)
            for name, values in zip(("cpu_ms", "wall_ms"), zip(*figures, strict=True), strict=True)
        }
        print(f"{way:<24}{cells[0]:>24}{cells[1]:>24}")
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
