"""The first 50 losses of every model: they change if and only if what is computed changes.

`python -m tests.golden [MODEL ...]` records those of the named models, or of all, anew; do so when a change is meant,
and say in its commit message why the losses moved.
"""

import json
import pathlib

import tensorflow as tf

import ctr_trainer as ctr
from tests import small
from tests.models import every

STEPS, ROWS, SEED = 50, 400, 7
_DIRECTORY = pathlib.Path(__file__).parent


class Losses(tf.compat.v1.train.SessionRunHook):
    """Keeps the loss of each step.

    Args:
      model_fn: whose loss it is; `self.model_fn` stands in for it.
    """

    def __init__(self, model_fn):
        self.values = []
        self._made_by = model_fn

    def model_fn(self, features, labels, mode, params):
        spec = self._made_by(features, labels, mode, params)
        self._loss = spec.loss
        return spec

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self.values.append(float(run_values.results))


def make_data(directory):
    """Makes the data sets of the losses; returns their paths by number of labels."""
    return {labels: small.make(directory / f"labels{labels}", ROWS, labels=labels) for labels in (1, 2)}


def make_estimator(name, model_dir):
    """Returns (Estimator, Losses) for a model's variant, with one worker, one thread, N = 1 and a fixed seed."""
    ctr.init()
    made = every.estimator(name, model_dir, seed=SEED)
    losses = Losses(made.model_fn)
    return ctr.Estimator(losses.model_fn, model_dir, made.params, made.config), losses


def reader(name, data, position=None):
    """Returns a reader of the batches for the losses of a variant."""
    return every.reader(name, data[every.labels(name)], seed=SEED, position=position)


def path(model):
    return _DIRECTORY / f"{model}.json"


def load(name):
    """Returns the recorded losses of a model's variant."""
    return json.loads(path(name.partition("-")[0]).read_text())[name]


def save(model, losses):
    """Writes the losses of a model's variants, by name."""
    rows = [f"  {json.dumps(name)}: {json.dumps([float(f'{v:.9g}') for v in losses[name]])}" for name in losses]
    path(model).write_text("{\n" + ",\n".join(rows) + "\n}\n")
