"""Runs optimizer steps in a session."""

import tensorflow as tf

from ctr_trainer.graph_notes.step_plan import StepPlan
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.dense_exchange import average_of_ranks

tf1 = tf.compat.v1


class OptimizerStep:
    """Runs optimizer steps of the current graph, one per call.

    Args:
      train_op: the operation that ends a step, of the `EstimatorSpec`.
      plan: the `StepPlan` of the graph.
    """

    def __init__(self, train_op: tf.Operation, plan: StepPlan) -> None:
        self._train_op, self._plan = train_op, plan
        self._kept = False
        self._average = None
        if plan.dense_sync_steps > 1 and distributed.size() > 1:
            # The state of the optimizer is averaged too. It tells how large the gradients were: with a state of its
            # own, each worker would step by its own measure, and a checkpoint holds one state only.
            variables = [variable for variable in tf1.global_variables() if variable.dtype.is_floating]
            self._average = average_of_ranks(variables, "dense_variables")

    def __call__(self, session: tf1.train.MonitoredSession) -> None:
        """Calls `session.run` once for each batch that the step needs."""
        for _ in range(self._plan.accumulation_steps - 1):
            session.run(self._plan.accumulate)
        begins = self._plan.begin is not None and not self._kept
        # Not after the run, whose hooks may settle.
        self._kept = self._plan.begin is not None
        session.run(self._plan.begin if begins else self._train_op)

    def settle(self, session: tf1.Session | tf1.train.MonitoredSession) -> None:
        """Applies what is pending to the dense variables, so that they are equal on all ranks. A collective.

        Under local SGD the variables, the optimizer's state and the moving statistics become their mean over the
        workers.
        """
        with distributed.watchdog().waiting("the other ranks' dense variables"):
            if self._average is not None:
                session.run(self._average)
            if self._kept:
                session.run(self._plan.drain)
        self._kept = False
