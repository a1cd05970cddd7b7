"""An optimizer step as a session runs it."""

import tensorflow as tf

from ctr_trainer.estimator.prepared_runs import prepare
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.dense_exchange import average_of_ranks

tf1 = tf.compat.v1


class OptimizerStep:
    """Runs steps of the current graph, one a call.

    Args:
      train_op: of the `EstimatorSpec`.
      plan: the graph's `StepPlan`.
      prepared: whether `prepare` does something.
    """

    def __init__(self, train_op, plan, prepared=False):
        self._train_op, self._plan, self._prepares = train_op, plan, prepared
        self._kept = False
        self._average = self._averaged = None
        if plan.dense_sync_steps > 1 and distributed.size() > 1:
            # The optimizer's state too: it says how large a worker's own gradients were, so each going on with its own
            # would step by its own measure from equal variables, and a checkpoint holds one worker's only.
            variables = [variable for variable in tf1.global_variables() if variable.dtype.is_floating]
            self._average = average_of_ranks(variables, "dense_variables")

    def __call__(self, session):
        """Takes a batch, or as many as a step needs.

        Args:
          session: a `MonitoredSession` or its `PreparedRuns`.
        """
        for _ in range(self._plan.accumulation_steps - 1):
            session.run(self._plan.accumulate)
        begins = self._plan.begin is not None and not self._kept
        # Not after the run, whose hooks may settle.
        self._kept = self._plan.begin is not None
        session.run(self._plan.begin if begins else self._train_op)

    def prepare(self, session):
        """Prepares what `settle` runs in a session, 30 ms of work that all ranks would otherwise wait for."""
        if self._average is not None and self._prepares:
            self._averaged = prepare(session, self._average)

    def settle(self, session):
        """Makes the dense variables what all steps so far made of them, equal on all ranks. A collective.

        Under local SGD they become their mean over the workers, the optimizer's state and moving statistics as well.
        """
        with distributed.watchdog().waiting("the other ranks' dense variables"):
            if self._averaged is not None:
                self._averaged()
            elif self._average is not None:
                session.run(self._average)
            if self._kept:
                session.run(self._plan.drain)
        self._kept = False
