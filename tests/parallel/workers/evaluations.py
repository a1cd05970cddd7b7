"""Trains with evaluations on the way, then evaluates and predicts; the tests read what it leaves below --out.

Each rank writes evaluations-RANK.json: the result of the training, its dense learning rate in each step as `rates`, and
metrics by the name of the evaluation.
"""

import argparse
import contextlib
import itertools
import json
import pathlib

import numpy as np
import tensorflow as tf

from ctr_trainer import cli
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, EvalSpec, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models import deepfm
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.train_settings import Schedule

FALLING = Schedule("plateau", decay_rate=0.5, patience=1)
FLAGS = ["--model=deepfm", "--hidden_units=8", "--batch_size=16", "--threads=1"]


class Rates(tf.compat.v1.train.SessionRunHook):
    """Keeps the dense learning rate of each step in `values`."""

    def __init__(self):
        self.values = []

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(run_context.session.graph.get_tensor_by_name("learning_rate:0"))

    def after_run(self, run_context, run_values):
        self.values.append(round(float(run_values.results), 4))


def make_estimator(model_dir, **config):
    params = ModelParams(TrainOp("adagrad", 0.1, 0.3, scale_lr="none", schedule=FALLING), hidden_units=(8,))
    embedding = EmbeddingConfig(learning_rate=0.3, sync_steps=7)
    config = config or {"save_checkpoints_steps": 5}
    config = RunConfig(threads=1, keep_checkpoint_max=0, embedding=embedding, **config)
    return Estimator(deepfm.model_fn, model_dir, params, config)


def reader(path, **more):
    return BatchReader(path, 16, distributed.rank(), distributed.size(), **more)


def evaluations(estimator, test, one_row):
    """Returns the metrics of several evaluations, by name. A collective."""
    once = dict(shuffle=False, epochs=1)
    return {
        "by user": estimator.evaluate(lambda: reader(test, **once), group_by="user"),
        "by row": estimator.evaluate(lambda: reader(test, **once), group_by="row"),
        "one row": estimator.evaluate(lambda: reader(one_row, **once), group_by="user"),
        "best": estimator.evaluate(lambda: reader(test, **once), checkpoint_path=estimator.find_checkpoint("best")),
    }


def predict_after_rank_0_left(estimator, test):
    """Returns this rank's probabilities; rank 0 has only those of its first batch, and leaves before others go on."""
    batches = reader(test, shuffle=False, epochs=1)
    with contextlib.closing(estimator.predict(lambda: batches, yield_single_examples=False)) as predicted:
        found = [next(predicted)]
        if distributed.is_chief():
            predicted.close()
        distributed.barrier("rank_0_left")
        if not distributed.is_chief():
            found += itertools.islice(predicted, batches.steps - 1)
    return np.concatenate([each["probabilities"] for each in found]).tolist()


def insights(data, out):
    """Writes the importance of columns, and the metrics by the values of one. A collective."""
    more = ["--repeats=2", "--rows=150"]
    assert cli.main(["importance", *FLAGS, *data, *more, f"--output={out / 'importance.json'}"]) == 0
    assert cli.main(["evaluate", *FLAGS, *data, "--by=user", f"--output={out / 'by.json'}"]) == 0


def main():
    parser = argparse.ArgumentParser()
    for name in ("train", "test", "one_row", "model_dir", "out"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    flags = parser.parse_args()
    distributed.init()
    estimator = make_estimator(flags.model_dir)
    eval_spec = EvalSpec(
        lambda: reader(flags.test, shuffle=False, epochs=1),
        every_n_steps=5,
        group_by="user",
        best_metric="auc",
        early_stopping_patience=3,
        early_stopping_min_delta=0.5,  # that much better only the first one is
    )
    rates = Rates()
    result = estimator.train(
        lambda position: reader(flags.train, position=position), [rates], max_steps=100, evaluation=eval_spec
    ).last_training
    by_epoch = EvalSpec(eval_spec.input_fn, every_n_epochs=1, best_metric="auc")
    by_time = make_estimator(flags.model_dir.parent / "by_time", save_checkpoints_secs=1e-6, log_steps=5)
    by_time.train(lambda position: reader(flags.train, position=position, epochs=2), evaluation=by_epoch)
    found = {"train": result.to_json(), "rates": rates.values, **evaluations(estimator, flags.test, flags.one_row)}
    found["rank 0 left"] = predict_after_rank_0_left(estimator, flags.test)
    flags.out.mkdir(parents=True, exist_ok=True)
    (flags.out / f"evaluations-{distributed.rank()}.json").write_text(json.dumps(found))
    data = [f"--eval_data={flags.test}", f"--model_dir={flags.model_dir}", "--checkpoint=best"]
    # The command compares the settings of all ranks, and does not find those of the `init` above.
    assert cli.main(["predict", *FLAGS, *data, f"--output={flags.out / 'predictions.parquet'}"]) == 0
    insights(data, flags.out)


if __name__ == "__main__":
    main()
