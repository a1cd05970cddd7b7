"""The factor of the learning rates that falls when evaluations do not improve."""

import tensorflow as tf

from ctr_trainer.messages.errors import UserError

tf1 = tf.compat.v1
_KEY = ("ctr_trainer", "plateau")  # No string, so that TensorFlow does not try to serialize what is under it.


class Plateau:
    """A factor in the training graph that the evaluations of a run lower.

        factor = max(decay_rate ** falls, end)

    Attributes:
      patience: how many evaluations without an improvement, since the last one that improved or the last fall, make a
        fall.
      factor: scalar float32 variable, not part of checkpoints: what it is follows from the evaluations so far.
    """

    def __init__(self, decay_rate, end, patience):
        self.patience = patience
        self._decay_rate, self._end = decay_rate, end
        self.factor = tf1.get_variable(
            "plateau_factor", initializer=1.0, trainable=False, collections=[tf1.GraphKeys.LOCAL_VARIABLES]
        )
        self._fed = tf1.placeholder(tf.float32, [])
        self._assign = self.factor.assign(self._fed).op

    def set(self, session, falls):
        """Makes the factor what it is after so many falls. -> the factor"""
        factor = max(self._decay_rate**falls, self._end)
        session.run(self._assign, {self._fed: factor})
        return factor


def make(decay_rate, end, patience):
    """-> the `Plateau` of the current graph, made at the first call."""
    if current() is None:
        tf1.add_to_collection(_KEY, Plateau(decay_rate, end, patience))
    return current()


def current():
    """-> the `Plateau` of the current graph; None if its learning rates do not depend on evaluations."""
    found = tf1.get_collection(_KEY)
    return found[0] if found else None


def check(patience, eval_spec):
    """Raises UserError if the evaluations of a run cannot lower its learning rates.

    Args:
      patience: see `Plateau`.
      eval_spec: `EvalSpec`; None for a run without evaluations.
    """
    if eval_spec is None or not eval_spec.best_metric:
        missing = "--eval_steps and --best_metric" if eval_spec is None else "--best_metric"
        raise UserError(f"--lr_schedule=plateau goes by what evaluations find: give {missing}, as --best_metric=auc")
    if 0 < eval_spec.early_stopping_patience <= patience:
        raise UserError(
            f"--early_stopping_patience={eval_spec.early_stopping_patience} would end the training before "
            f"--plateau_patience={patience} lowers a learning rate: give early stopping the greater patience"
        )
