"""Measures a job's batches and variables and the cost of an allreduce; a worker process of `measure_costs`.

Rank 0 writes one JSON object:

    rows, growth, row_bytes         see `Costs`; measured on the first batches
    dims                            `TableConfig.dims` of the table with the most rows
    dense_bytes, state_bytes        see `Costs`
    small_seconds, dense_seconds    wall time of an allreduce of one float, and of `dense_bytes`; medians
    small_cpu_seconds ...           CPU time of rank 0 for an allreduce; means
    memory_small_seconds ...        the same times for sums in the memory that the workers share
"""

import dataclasses
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from absl import flags as absl_flags

from ctr_trainer.bench.workload import W1Batches
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.experiment import flags
from ctr_trainer.experiment.build import make_estimator, training_reader
from ctr_trainer.experiment.experiment import Experiment
from ctr_trainer.features.spec import TableFeatures
from ctr_trainer.ranks import dense_exchange, distributed
from ctr_trainer.settings.optimizers import RowOptimizer
from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.system.messages.errors import UserError

_WINDOW = 30
_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class ProbeFlags(Settings, title="Probe"):
    """The flags of a probe in addition to the flags of `train`."""

    result: str = setting("", "file that rank 0 writes", "path")
    repeats: int = setting(50, "runs of each allreduce", "times", minimum=1)


class _Sizes(tf1.train.SessionRunHook):
    """Counts the bytes of the trainable dense variables, and of all float variables, which --dense_sync_steps sends."""

    def begin(self) -> None:
        self.dense = _bytes(tf1.trainable_variables())
        self.state = _bytes(v for v in tf1.global_variables() if v.dtype.base_dtype.is_floating)


def main() -> int:
    """Runs the probe and returns the exit status."""
    try:
        values = flags.define((ProbeFlags, *flags.TRAINING))
        values(sys.argv)
        _probe(flags.read(ProbeFlags, values), flags.read(Experiment, values))
    except (absl_flags.Error, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _probe(probe: ProbeFlags, experiment: Experiment) -> None:
    data = experiment.data
    distributed.init(experiment.workers.stall_timeout, experiment.workers.pin_cores)

    def batches(position: Any = None) -> Any:
        if data.train_data:
            return training_reader(experiment, position)
        return W1Batches(data.batch_size, None, distributed.rank())

    with tempfile.TemporaryDirectory() as own:
        # Each rank has its own model directory, as the model is discarded.
        model = dataclasses.replace(experiment.model, model_dir=own)
        estimator = make_estimator(dataclasses.replace(experiment, model=model))
        sizes = _Sizes()
        estimator.train(batches, hooks=[sizes], max_steps=1)
    found = _rows(batches(), experiment.run.embedding.optimizer)
    found |= {"dense_bytes": sizes.dense, "state_bytes": sizes.state}
    found |= _allreduces(sizes.dense, probe.repeats)
    if distributed.is_chief():
        with open(f"{probe.result}.tmp", "w") as file:
            json.dump(found, file)
        os.replace(f"{probe.result}.tmp", probe.result)


def _rows(reader: Any, optimizer: RowOptimizer) -> dict[str, Any]:
    """Returns `rows`, `growth`, `row_bytes` and `dims`, from at most _WINDOW batches."""
    tables = reader.spec.tables
    seen: dict[str, list[np.ndarray]] = {table.name: [] for table in tables}
    for batch in itertools.islice(iter(reader), _WINDOW):
        for table in tables:
            keys = [batch.keys[table.name].ravel()] if table.name in batch.keys else []
            keys += [batch.bags[feature.name].values for feature in (*table.bags, *table.sequences)]
            seen[table.name].append(np.unique(np.concatenate(keys)) if keys else np.zeros(0, np.int64))
    batches = max(map(len, seen.values()))
    one = {name: statistics.fmean(map(len, parts)) for name, parts in seen.items()}
    window = {name: len(np.unique(np.concatenate(parts))) for name, parts in seen.items()}
    configs = {table.name: _config(table, optimizer) for table in tables}
    total = sum(one.values())
    growth = math.log(sum(window.values()) / total) / math.log(batches) if batches > 1 else 1.0
    return {
        "rows": total,
        "growth": min(max(growth, 0.0), 1.0),
        "row_bytes": round(sum(_FLOAT_BYTES * configs[name].width * one[name] for name in one) / total),
        "dims": configs[max(one, key=lambda name: one[name])].dims,
    }


def _config(table: TableFeatures, optimizer: RowOptimizer) -> TableConfig:
    """Returns the layout of a table's rows with a linear weight, which most models have."""
    return TableConfig(table.name, (table.dim, 1), (0.0, 0.0), optimizer)


def _allreduces(dense_bytes: int, repeats: int) -> dict[str, float]:
    """Returns the wall and CPU seconds of allreduces, see the top of this module. A collective."""
    found: dict[str, float] = {}
    with tf.Graph().as_default():
        runs = {}
        for size, floats in (("small", 1), ("dense", max(dense_bytes // _FLOAT_BYTES, 1))):
            variable = tf1.get_variable(size, [floats], tf.float32, tf1.zeros_initializer())
            for name, by_horovod in ((size, True), (f"memory_{size}", False)):
                # Fetch the operation, as a fetched tensor would be copied.
                runs[name] = dense_exchange.sum_of_ranks(
                    variable.read_value(), f"probe.{name}", by_horovod=by_horovod
                ).op
        with tf1.Session(config=distributed.session_config(1)) as session:
            session.run(tf1.global_variables_initializer())
            for name, operation in runs.items():
                walls = []
                for number in range(repeats + 5):
                    if number == 5:  # From here on, the tensor is in Horovod's cache.
                        cpu = time.process_time()
                    start = time.perf_counter()
                    session.run(operation)
                    walls.append(time.perf_counter() - start)
                found[f"{name}_seconds"] = statistics.median(walls[5:])
                found[f"{name}_cpu_seconds"] = (time.process_time() - cpu) / repeats
    return found


def _bytes(variables: Iterable[Any]) -> int:
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)


if __name__ == "__main__":
    sys.exit(main())
