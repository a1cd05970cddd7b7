"""W1 through the Estimator, with its hooks and log, alone or under horovodrun. A worker prints its examples/s as JSON.

Examples: python benchmarks/ours.py --cores=0
          horovodrun -np 2 python benchmarks/ours.py --cores=0,1 --embedding_service=shared --dense_sync_steps=30
"""

import argparse
import contextlib
import dataclasses
import json
import os
import tempfile
import time

RSS_FROM_STEP = 2000


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--cores", default="0", help="core of each worker, such as 0,1; a lone worker uses all")
    parser.add_argument("--prefetch_batches", type=int, default=0)
    parser.add_argument("--embedding_service", default="auto")
    parser.add_argument("--row_copies", default="auto")
    parser.add_argument("--service_core", type=int, help="the core of a service for a lone worker; default none")
    parser.add_argument("--sync_steps", type=int, default=30)
    parser.add_argument("--dense_sync_steps", type=int, default=1)
    parser.add_argument("--dense_exchange", default="auto")
    parser.add_argument("--overlap_lookup", action="store_true")
    parser.add_argument("--mixed_precision", default="none")
    parser.add_argument("--model_dir", default="")
    return parser.parse_args()


def main() -> None:
    flags = parse()
    cores = [int(core) for core in flags.cores.split(",")]
    os.sched_setaffinity(0, cores)

    import psutil
    import tensorflow as tf

    from ctr_trainer.bench import workload as w1
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
    distributed.init(pin_cores=True, steps_exchange=dense_exchange.is_by_horovod(flags.dense_exchange))
    dense_exchange.choose(flags.dense_exchange)
    clock = Clock()
    train_op = TrainOp("adagrad", w1.LEARNING_RATE, w1.LEARNING_RATE, dense_sync_steps=flags.dense_sync_steps)
    embedding = EmbeddingConfig(
        service=flags.embedding_service,
        row_copies=flags.row_copies,
        learning_rate=w1.LEARNING_RATE,
        optimizer=RowAdagrad(initial_accumulator=w1.INITIAL_ACCUMULATOR),
        stddev=w1.STDDEV,
        sync_steps=flags.sync_steps,
        overlap_lookup=flags.overlap_lookup,
    )
    config = RunConfig(
        threads=1,
        save_checkpoints_steps=0,
        prefetch_batches=flags.prefetch_batches,
        mixed_precision=flags.mixed_precision,
        embedding=embedding,
    )
    with contextlib.ExitStack() as stack:
        model_dir = flags.model_dir or stack.enter_context(tempfile.TemporaryDirectory())
        if flags.service_core is not None:
            config = dataclasses.replace(
                config, embedding=_with_service(stack, embedding, flags.service_core, model_dir)
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


if __name__ == "__main__":
    main()
