"""Trains by `train` with the given flags, and prints how often it called Horovod's parts, as a line of JSON.

python recipe.py --train_data=DATA ...
"""

import json
import sys

from ctr_trainer.system.processes import tensorflow_import

tensorflow_import.load()  # As `train` does.

import horovod.tensorflow as hvd  # noqa: E402
import tensorflow as tf  # noqa: E402

from ctr_trainer import cli  # noqa: E402
from ctr_trainer.ranks.host_sum import HostSum  # noqa: E402

calls: dict[str, int] = {}


def count(owner: object, name: str, title: str) -> None:
    """Has `calls` count the calls of a method or a class."""
    inner, calls[title] = getattr(owner, name), 0

    def call(*arguments: object, **more: object) -> object:
        calls[title] += 1
        return inner(*arguments, **more)

    setattr(owner, name, call)


count(tf.compat.v1.train.MonitoredSession, "run", "session_runs")
count(hvd, "DistributedOptimizer", "distributed_optimizers")
count(hvd.BroadcastGlobalVariablesHook, "__init__", "broadcast_hooks")
count(HostSum, "__init__", "host_sums")
status = cli.main(["train", *sys.argv[1:]])
print("calls: " + json.dumps(calls), flush=True)
sys.exit(status)
