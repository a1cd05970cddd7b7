"""A run of one of our models: training by its flagfile, its best epoch by validation, and its test AUC."""

import hashlib
import pathlib
import tempfile
import time

import accuracy_data

from ctr_trainer.commands.train import GROUPS
from ctr_trainer.estimator import MetricsConfig, TrainSpec, train_and_evaluate
from ctr_trainer.experiment import build, flags
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
EXACT = MetricsConfig(exact_auc=True)


def flagfile(data, model):
    """Returns the path of an experiment, such as configs/movielens_time_deepfm.flags."""
    return CONFIGS / f"{data.removesuffix('-random').replace('-', '_')}_{model}.flags"


def fingerprint(data, model):
    """Returns a hash of the experiment's flagfile and feature spec."""
    spec = accuracy_data.spec_path(data)
    return hashlib.sha256(flagfile(data, model).read_bytes() + spec.read_bytes()).hexdigest()[:16]


def run(data, parts, model, seed, more=(), is_flagfile=True, hooks=()):
    """Trains to the best epoch by the AUC of the part `valid`, and tests it.

    Args:
      more: flags, after the flagfile.
      is_flagfile: whether the data and the model have a flagfile; else `more` are all flags.
      hooks: of the training.

    Returns:
      dict of `auc`, `logloss` and `copc` of the test part, the AUC `valid`, the `steps` until the best epoch, and
      `seconds`.
    """
    start, values = time.perf_counter(), flags.define(GROUPS)
    with tempfile.TemporaryDirectory(prefix="ctr_trainer_accuracy_") as model_dir:
        own = [f"--train_data={parts.train}", f"--eval_data={parts.valid}", f"--model_dir={model_dir}"]
        own += [f"--seed={seed}", "--summary_steps=0", "--save_checkpoints_steps=0", "--log_steps=1000000"]
        given = [f"--flagfile={flagfile(data, model)}"] if is_flagfile else []
        values(["accuracy", *given, *own, *more])
        experiment, evaluation, *_ = (flags.read(group, values) for group in GROUPS)
        distributed.init(experiment.workers.stall_timeout, experiment.workers.pin_cores)
        estimator = build.make_estimator(experiment)

        def valid():
            return build.reader(experiment, experiment.data.eval_data, once=True)

        def test():
            return build.reader(experiment, parts.test, once=True)

        spec = build.make_eval_spec(evaluation, EXACT, valid)
        if spec is None or spec.best_metric != "auc":
            raise UserError(f"{data}, {model}: the run is chosen by --eval_steps=N --best_metric=auc")
        training = TrainSpec(lambda position: build.training_reader(experiment, position), hooks=hooks)
        train_and_evaluate(estimator, training, spec)
        best = estimator.find_checkpoint("best")
        at_best = estimator.evaluate(valid, checkpoint=best, metrics=EXACT)
        tested = estimator.evaluate(test, checkpoint=best, metrics=EXACT)
    return {
        "auc": tested["auc"],
        "logloss": tested["logloss"],
        "copc": tested["copc"],
        "valid": at_best["auc"],
        "steps": best.step,
        "seconds": round(time.perf_counter() - start, 1),
    }
