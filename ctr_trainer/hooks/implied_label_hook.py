"""Ends a run whose labels contradict each other."""

import numpy as np
import tensorflow as tf

from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed


class ImpliedLabelHook(tf.compat.v1.train.SessionRunHook):
    """Raises UserError after a batch in which a label is 1 where the label that it implies is 0, and counts them.

    Args:
      model: its name, for the error.
      implied, label: names of the two labels, as `click` and `conversion`.
      labels: dict of name -> float32[B].
    """

    def __init__(self, model, implied, label, labels):
        self._what = model, implied, label
        self._labels = labels[implied], labels[label]

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(self._labels)

    def after_run(self, run_context, run_values):
        implied, label = run_values.results
        alone = int(np.sum((label > 0) & (implied <= 0)))
        if alone:
            model, first, second = self._what
            raise UserError(
                f"--model={model}: {alone} of {int(np.sum(label > 0))} examples with {second} = 1 have {first} = 0, in "
                f"a batch of {len(label)} on rank {distributed.rank()}. It takes {second} for something that only "
                f"an example with {first} can have: mend the labels, or name the two with "
                f"--model_params=click=NAME,conversion=NAME (now {first} and {second}), or choose mmoe or ple"
            )
