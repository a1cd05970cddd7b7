"""The mean of the workers' dense variables, for local SGD."""

import tensorflow as tf

from ctr_trainer import distributed
from ctr_trainer.estimator.exchange import average_of_ranks

tf1 = tf.compat.v1


class NoAverage:
    """For workers whose dense variables are equal at all times."""

    def __call__(self, session):
        """Nothing to do."""


class DenseAverage:
    """Sets every float variable to the workers' mean, the optimizer's state and the moving statistics among them.

    Why the state too: a worker's Adagrad accumulator or Adam moments say how large its gradients were. Each worker
    going on with its own would take steps of its own size from the same variables, and a checkpoint holds one's only.
    """

    def __init__(self):
        variables = [variable for variable in tf1.global_variables() if variable.dtype.is_floating]
        self._average = average_of_ranks(variables, "dense_variables")

    def __call__(self, session):
        """Averages. A collective."""
        with distributed.watchdog().waiting("the other ranks' dense variables"):
            session.run(self._average)


def dense_average(plan):
    """-> what brings the dense variables of the ranks together, for the `StepPlan` of the current graph."""
    return DenseAverage() if plan.dense_sync_steps > 1 and distributed.size() > 1 else NoAverage()
