"""A worker of a job that is measured: trains as `train` does, and leaves what it found in a file of its rank."""

import dataclasses
import json
import os
import sys

from absl import flags as absl_flags

from ctr_trainer import flags, log_lines
from ctr_trainer.commands import train
from ctr_trainer.errors import UserError
from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class WorkerFlags:
    """Worker"""

    result_dir: str = flag("", "where rank r writes rank-r.json", "path")
    core_shares: int = flag(0, "equal parts of a machine's cores; a worker gets one; 0: as many as workers", minimum=0)
    towers: int = flag(1, "parts that a batch is cut into, each computed on a device of its own", minimum=1)


def main():
    """-> the exit status, as that of `python -m ctr_trainer`."""
    log_lines.install(rank=log_lines.rank_of_this_process())
    groups = (WorkerFlags, *train.GROUPS)
    try:
        values = flags.define(groups)
        values(sys.argv)
        found = _measure(*(flags.read(group, values) for group in groups))
    except (absl_flags.Error, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    path = os.path.join(values["result_dir"].value, f"rank-{found['rank']}.json")
    with open(path, "w") as file:
        json.dump(found, file)
    return 0


def _measure(worker, model, data, training, embedding, evaluation, metrics, run, export):
    """Trains, then evaluates where there is --eval_data. -> dict, see `result`."""
    from ctr_trainer import autotune, dense_exchange, distributed
    from ctr_trainer.bench.towers import in_towers
    from ctr_trainer.bench.workload import W1Batches
    from ctr_trainer.commands.class_weight import with_class_weight
    from ctr_trainer.commands.experiment import (
        make_estimator,
        metrics_config,
        reader,
        steps_exchange,
        training_reader,
        way_of_exchange,
    )

    autotune.prepare(training.autotune, training.autotune_log, model.model_dir)
    exchange = way_of_exchange(training, run)
    waits = steps_exchange(embedding, exchange)
    distributed.init(run.stall_timeout, run.pin_cores, core_shares=worker.core_shares, steps_exchange=waits)
    dense_exchange.choose(exchange)
    if data.train_data:
        training = with_class_weight(model, data, training)
    estimator = make_estimator(model, data, training, embedding, run)
    if worker.towers > 1:
        estimator.model_fn = in_towers(estimator.model_fn, worker.towers)

    def train_input_fn(position):
        if not data.train_data:
            return W1Batches(data.batch_size, None, distributed.rank())
        return training_reader(model, data, training, position)

    trained = estimator.train(train_input_fn, max_steps=training.max_steps)
    evaluated = {}
    if data.eval_data:
        batches = reader(data.eval_data, model, data, training, once=True)
        evaluated = estimator.evaluate(lambda: batches, metrics=metrics_config(metrics))
    return result(distributed.rank(), trained, evaluated, data.batch_size * training.accumulation_steps)


def result(rank, trained, evaluated, examples_per_step):
    """-> dict of `rank`, `examples_per_sec` of this rank over the steps that count, `phases` and `load` as
    `Estimator.train` returns them, what all ranks `held` of memory and GPUs (see `RunSummary.results`), and where there
    was an evaluation `auc` and `logloss`.
    """
    return {
        "rank": rank,
        "examples_per_sec": examples_per_step / trained["phases"]["step_seconds"],
        "phases": trained["phases"],
        "load": trained["load"],
        "held": {name: trained[name] for name in ("resident_bytes", "service_resident_bytes", "gpu")},
        **{name: evaluated[name] for name in ("auc", "logloss") if name in evaluated},
    }


if __name__ == "__main__":
    sys.exit(main())
