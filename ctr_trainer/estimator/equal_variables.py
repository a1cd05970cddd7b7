"""Checks that all workers train one model, by the values of the variables."""

import logging

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
# Largest allowed difference of a variable between ranks, relative to its largest value, after the first step and later.
# Types of processors round differently.
_FIRST_ROUNDING, _ROUNDING = 1e-6, 1e-4
_NAMED = 5


class EqualVariables:
    """Compares the trainable variables of the current graph across all ranks. With one worker, does nothing.

    The ranks compare a checksum of each variable's bits, so a comparison reads the variables once and exchanges 8 bytes
    per variable. Only variables whose checksums differ are compared value by value.
    """

    def __init__(self) -> None:
        several = distributed.size() > 1
        found = [v for v in tf1.trainable_variables() if several and v.dtype.base_dtype.is_floating]
        self._variables = {variable.op.name: variable for variable in found}
        with tf.device("/cpu:0"):
            self._sums = [_checksum(variable) for variable in found]
        self._has_warned = False

    def check(self, session: tf1.Session, step: int, is_first: bool = False) -> None:
        """Checks that the variables are equal on all ranks, apart from rounding. A collective.

        Args:
          is_first: whether only one step was made since rank 0 broadcast its variables.

        Raises:
          UserError: some variables differ. The message names up to five of them.
        """
        if not self._variables:
            return
        own = np.array(session.run(self._sums), np.int64)
        sums = distributed.all_gather(own, "dense_checksums").reshape(distributed.size(), -1)
        names = [name for name, of_ranks in zip(self._variables, sums.T, strict=True) if len(set(of_ranks)) > 1]
        if names:
            self._compare(session, step, names, _FIRST_ROUNDING if is_first else _ROUNDING)

    def _compare(self, session: tf1.Session, step: int, names: list[str], rounding: float) -> None:
        own = session.run([self._variables[name] for name in names])
        of_rank_0 = distributed.broadcast_arrays(own, "dense_variables_of_rank_0")
        apart = np.array([_apart(*pair) for pair in zip(own, of_rank_0, strict=True)])
        most = distributed.all_gather(apart, "dense_differences").reshape(distributed.size(), -1).max(axis=0)
        found = [(name, part) for name, part in zip(names, most, strict=True) if part > rounding]
        if found:
            named = ", ".join(f"{name} (by {part:.2g} of its largest value)" for name, part in found[:_NAMED])
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            raise UserError(
                f"the workers no longer train one model: at step {step} these variables differ between the "
                f"{distributed.size()} ranks: {named}{more}. Something updates them outside the exchange of gradients: "
                "wrap every optimizer that updates them, tf_estimator.DistributedOptimizer(optimizer).minimize(loss, "
                "global_step), or give the one optimizer of all variables in place of the train_op, "
                "EstimatorSpec(mode, loss=loss, optimizer=optimizer), and have hooks do the same on all ranks"
            )
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "at step %d %s differs between the ranks by %.2g of its largest value, as rounding makes it",
                step,
                names[int(most.argmax())],
                most.max(),
            )


def _checksum(variable: tf1.Variable) -> tf.Tensor:
    """Returns the sum of a variable's values, reading their bits as integers. The sum wraps around."""
    value = variable.read_value()
    integers = {2: tf.int16, 4: tf.int32, 8: tf.int64}[value.dtype.size]
    bits = tf.bitcast(value, integers)
    return tf.cast(tf.reduce_sum(tf.cast(bits, tf.int32) if integers == tf.int16 else bits), tf.int64)


def _apart(own: np.ndarray, other: np.ndarray) -> float:
    """Returns the largest difference relative to the largest value; 0 if a value is not finite, see other checks."""
    own, other = own.astype(np.float64), other.astype(np.float64)
    if not (own.size and np.isfinite(own).all() and np.isfinite(other).all()):
        return 0.0
    return float(np.abs(own - other).max() / max(np.abs(other).max(), np.abs(own).max(), np.finfo(np.float64).tiny))
