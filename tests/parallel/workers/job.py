"""Trainings on the small data, which say what they saw: the tests read what each leaves below its --out.

The arguments of several trainings stand behind each other with NEXT between them; one process runs them in turn.

At its start each rank writes start-RANK.npz (the global step and the dense variables), at the
end seen-RANK.json (the ids of the examples it trained on). --evaluate adds metrics.json and predictions-RANK.npz.
"""

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import sys
import time

import numpy as np
import tensorflow as tf

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.data.source import ConvertedData
from ctr_trainer.estimator import EmbeddingConfig, Estimator, EvalSpec, FinalExporter, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.estimator.program import run_program
from ctr_trainer.features.columns import TableLimits
from ctr_trainer.models import deepfm
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.training_configs import PublishConfig
from tests import checkpoints
from tests.constant import CONSTANT

NEXT = "--next"

parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.add_argument("--model_dir")
parser.add_argument("--out")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--max_steps", type=int)
parser.add_argument("--step_seconds", type=float, default=0.0)
parser.add_argument("--fail_at_step", type=int, default=0)
parser.add_argument("--service", default="auto")
parser.add_argument("--service_timeout", type=float, default=30.0)
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--evaluation_steps", type=int, help="batches after each 10 steps; 0 for no end of them")
parser.add_argument("--loose", action="store_true", help="sync beside the training, with lookups ahead")
parser.add_argument("--row_dtype", default="float32")
parser.add_argument("--row_copies", default="host")
parser.add_argument("--warm_start", default="")
parser.add_argument("--publish", default="")
parser.add_argument("--next_data", action="store_true")
parser.add_argument("--limits", action="store_true", help="a table of at most 50 rows, of keys that came twice")
parser.add_argument("--stall_warning", type=float, default=0.0)
parser.add_argument("--stall_timeout", type=float, default=1800.0)


class Witness(tf.compat.v1.train.SessionRunHook):
    """Writes what the run starts from, and keeps the ids it sees."""

    def __init__(self, flags):
        self.seen, self._flags, self._steps = [], flags, 0

    def begin(self):
        self._dense = {v.op.name: v for v in tf.compat.v1.global_variables()}

    def after_create_session(self, session, coord):
        out, rank = pathlib.Path(self._flags.out), distributed.rank()
        values = {name.replace("/", "."): value for name, value in session.run(self._dense).items()}
        np.savez(out / f"start-{rank}.npz", **values)
        (out / f"pid-{rank}").write_text(str(os.getpid()))

    def after_run(self, run_context, run_values):
        self._steps += 1
        time.sleep(self._flags.step_seconds)
        if self._steps == self._flags.fail_at_step and distributed.rank() == 1:
            raise RuntimeError("failing on purpose")


class Recording:
    """A reader's batches, whose ids the witness keeps; `limits` are those of the feature spec."""

    def __init__(self, reader, witness, limits):
        self._reader, self._witness = reader, witness
        self.spec = dataclasses.replace(reader.spec, limits=limits)
        self.statistics, self.batch_size = reader.statistics, reader.batch_size
        self.position_after = reader.position_after

    def with_statistics(self, statistics):
        return Recording(self._reader.with_statistics(statistics), self._witness, self.spec.limits)

    def __iter__(self):
        for batch in self._reader:
            self._witness.seen.extend(map(str, batch.ids["row"][: batch.size]))
            yield batch


def make_estimator(flags):
    embedding = EmbeddingConfig(
        optimizer="sgd",
        learning_rate=0.5,
        sync_steps=5,
        service=flags.service,
        row_dtype=flags.row_dtype,
        row_copies=flags.row_copies,
        service_timeout=flags.service_timeout,
    )
    config = RunConfig(
        threads=1,
        deterministic=not flags.loose,
        prefetch_batches=3 if flags.loose else 0,
        save_checkpoints_steps=10,
        warm_start=flags.warm_start,
        publish=PublishConfig(to=flags.publish, secs=1.0),
        log_steps=5,
        embedding=embedding,
    )
    params = ModelParams(TrainOp("sgd", 0.1, 0.5, **CONSTANT), hidden_units=(8,))
    return Estimator(deepfm.model_fn, flags.model_dir, params, config)


def run(flags):
    out, rank, size = pathlib.Path(flags.out), distributed.rank(), distributed.size()
    out.mkdir(parents=True, exist_ok=True)
    estimator, witness = make_estimator(flags), Witness(flags)

    def input_fn(position):
        reader = BatchReader(flags.data, 16, rank, size, epochs=flags.epochs or None, position=position, seed=5)
        limits = [TableLimits(table.name, 2, 50) for table in reader.spec.tables[:1]] if flags.limits else ()
        return Recording(reader, witness, tuple(limits))

    next_data = ConvertedData(flags.data).files if flags.next_data else ""
    evaluation = None
    if flags.evaluation_steps is not None:
        exported = dict(best_metric="auc", exporters=[FinalExporter("final")])
        period = dict(every_n_steps=10, steps=flags.evaluation_steps)
        evaluation = EvalSpec(lambda: BatchReader(flags.data, 16, rank, size), **period, **exported)
    estimator.train(input_fn, hooks=[witness], max_steps=flags.max_steps, evaluation=evaluation, next_data=next_data)
    result = estimator.last_training
    (out / f"seen-{rank}.json").write_text(json.dumps(witness.seen))
    (out / f"result-{rank}.json").write_text(json.dumps(result and result.to_json()))
    if flags.evaluate:
        evaluate(estimator, flags.data, out)
    checkpoint = estimator.latest_checkpoint()  # All ranks ask for it.
    if rank == 0:
        np.savez(out / "rows.npz", **checkpoints.rows(checkpoint))


def evaluate(estimator, data, out):
    rank = distributed.rank()

    def once():
        return BatchReader(data, 16, rank, distributed.size(), shuffle=False, epochs=1)

    (out / f"metrics-{rank}.json").write_text(json.dumps(estimator.evaluate(once)))
    parts = list(estimator.predict(once, yield_single_examples=False))
    np.savez(
        out / f"predictions-{rank}.npz",
        row=np.concatenate([np.array([str(r) for r in part["row"]]) for part in parts]),
        probabilities=np.concatenate([part["probabilities"] for part in parts]),
        logits=np.concatenate([part["logits"] for part in parts]),
    )


def main():
    for training in trainings:
        run(training)


trainings = [
    parser.parse_args([*arguments])
    for is_next, arguments in itertools.groupby(sys.argv[1:], lambda argument: argument == NEXT)
    if not is_next
]
first = trainings[0]
distributed.init(first.stall_timeout, stall_warning=first.stall_warning, steps_exchange=False)  # As `train` does.
sys.exit(run_program(main))
