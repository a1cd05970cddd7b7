"""Hooks that save, publish and evaluate the model while it trains."""

import logging

import tensorflow as tf

from ctr_trainer.hooks.periods import EverySeconds
from ctr_trainer.hooks.step_hook import Order, PeriodicHook
from ctr_trainer.messages.errors import UserError

tf1 = tf.compat.v1
_LAST_SECONDS = 600.0
_SHARE_OF_GRACE = 3
_log = logging.getLogger(__name__)


class CheckpointHook(PeriodicHook):
    """Saves after each step that the period says, and at the end.

    Every rank takes part, since all of them must have handed their updates to the service first.

    Args:
      saving: `Saving`, or another object with its `begin`, `look` and `__call__`.
      period, clock: see `PeriodicHook`.
    """

    phase, order = "checkpoint", Order.SAVE

    def __init__(self, saving, period, clock=None):
        super().__init__(period, clock)
        self._saving, self._start = saving, None

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._start = self.step

    def after_step(self, run_context, run_values):
        self._saving.look()
        super().after_step(run_context, run_values)

    def act(self, run_context):
        self._saving.begin(run_context.session, self.step)
        self._period.begin()

    def end(self, session):
        with self._clock.within(self.phase):
            if self.step != self._start:
                self._saving(session, self.step)


class PublishHook(PeriodicHook):
    """Fetches the variables of the dense tower at the start, every `secs` seconds, and at the end; of rank 0 alone.

    Staleness: with several steps from one exchange of the dense variables to the next, the tower is that of rank 0.

    Args:
      publisher: has `offer(step, values)` and `finish(seconds)`.
      names: of the variables of the tower.
      secs: seconds between two fetches.
      is_stopping: f() -> whether a signal has asked the training to end.
      grace_secs: seconds that it may take then.
      clock: see `PeriodicHook`.
    """

    order = Order.PUBLISH

    def __init__(self, publisher, names, secs, is_stopping, grace_secs, clock=None):
        super().__init__(EverySeconds(secs), clock)
        self._publisher, self._names = publisher, names
        self._is_stopping, self._grace_secs = is_stopping, grace_secs

    def begin(self):
        super().begin()
        found = {variable.op.name: variable for variable in tf1.global_variables()}
        missing = sorted(set(self._names) - found.keys())
        if missing:
            raise UserError(
                f"--publish: the model predicts with the variable {missing[0]}, which its training does not have; have "
                "model_fn make the same variables in both modes"
            )
        self._variables = {name: found[name] for name in self._names}

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._offer(session)

    def act(self, run_context):
        self._offer(run_context.session)
        self._period.begin()

    def end(self, session):
        self._offer(session)
        with self._clock.within(self.phase):
            self._publisher.finish(self._grace_secs / _SHARE_OF_GRACE if self._is_stopping() else _LAST_SECONDS)

    def _offer(self, session):
        self._publisher.offer(self.step, session.run(self._variables))


class EvaluationHook(PeriodicHook):
    """Evaluates after each step that the period says, and at the end; stops training if told to. Every rank takes part.

    Args:
      evaluate: f(session, step) -> whether training is to stop; a collective.
      period, clock: see `PeriodicHook`.
      stop: `StopHook`: a training that a signal stops does not evaluate any more.
    """

    phase, order = "evaluation", Order.EVALUATE

    def __init__(self, evaluate, period, clock=None, stop=None):
        super().__init__(period, clock)
        self._evaluate, self._evaluated, self._stop = evaluate, None, stop

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._evaluated = self.step

    def act(self, run_context):
        if self._evaluate_once(run_context.session):
            run_context.request_stop()

    def end(self, session):
        with self._clock.within(self.phase):
            self._evaluate_once(session)

    def _evaluate_once(self, session):
        if self._evaluated == self.step or (self._stop is not None and self._stop.signal):
            return False
        stop = self._evaluate(session, self.step)
        self._evaluated = self.step
        return stop


class PlateauHook(tf.compat.v1.train.SessionRunHook):
    """Keeps a `Plateau`'s factor what the evaluations so far make of it, from the start of the session on.

    It stands in for the evaluation that it is about: f(session, step) -> whether training is to stop; a collective.

    Args:
      selection: `ModelSelection`, whose `falls` are the same on all ranks.
      plateau: `Plateau`.
    """

    order = Order.EVALUATE

    def __init__(self, selection, plateau):
        self._selection, self._plateau = selection, plateau

    def after_create_session(self, session, coord):
        if self._selection.falls:
            factor = self._plateau.set(session, self._selection.falls)
            _log.info("learning rates go on at %g of their full value, as the evaluations so far have it", factor)

    def __call__(self, session, step):
        before = self._selection.falls
        stop = self._selection(session, step)
        if self._selection.falls != before:
            factor = self._plateau.set(session, self._selection.falls)
            _log.info(
                "evaluation at step %d: no improvement; learning rates fall to %g of their full value", step, factor
            )
        return stop
