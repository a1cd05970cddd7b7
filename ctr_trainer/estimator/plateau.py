"""The factor of the learning rates that falls when evaluations do not improve."""

import tensorflow as tf

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
