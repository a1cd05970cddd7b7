"""Hooks that save, publish and evaluate the model while it trains."""

from collections.abc import Callable, Iterable

import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.hooks.ending_hooks import StopHook
from ctr_trainer.estimator.hooks.periods import EverySeconds, EverySteps
from ctr_trainer.estimator.hooks.step_hook import Order, PeriodicHook
from ctr_trainer.estimator.saving import Saving
from ctr_trainer.live.publication.publisher import Publisher
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError

_LAST_SECONDS = 600.0
_SHARE_OF_GRACE = 3


class CheckpointHook(PeriodicHook):
    """Saves a checkpoint after each step at which the period is due, and at the end.

    All ranks take part, because each rank must first send its updates to the service.
    """

    phase, order = "checkpoint", Order.SAVE

    def __init__(self, saving: Saving, period: EverySteps, clock: Clock | None = None) -> None:
        super().__init__(period, clock)
        self._saving = saving
        self._start: int | None = None

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._start = self.step

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self._saving.look()
        super().after_step(run_context, run_values)

    def act(self, run_context: tf1.train.SessionRunContext) -> None:
        self._saving.begin(run_context.session, self.step)
        self._period.begin()

    def end(self, session: tf1.Session) -> None:
        with self._clock.within(self.phase):
            if self.step != self._start:
                self._saving(session, self.step)


class PublishHook(PeriodicHook):
    """Offers the dense tower of rank 0 to a publisher at the start, every `secs` seconds, and at the end.

    Staleness: if the workers average their dense variables only every few steps, the tower has the variables of rank 0.

    Args:
      names: names of the tower's variables.
      secs: seconds between two offers.
      is_stopping: f() -> whether a signal has asked the training to end.
      grace_secs: seconds that the end of the training may then take.
      catch_up: f(), called before each offer, makes the rows of a dense optimizer catch up on missed steps.
    """

    order = Order.PUBLISH

    def __init__(
        self,
        publisher: Publisher,
        names: Iterable[str],
        secs: float,
        is_stopping: Callable[[], bool],
        grace_secs: float,
        clock: Clock | None = None,
        catch_up: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(EverySeconds(secs), clock)
        self._publisher, self._names, self._catch_up = publisher, names, catch_up
        self._is_stopping, self._grace_secs = is_stopping, grace_secs

    def begin(self) -> None:
        super().begin()
        found = {variable.op.name: variable for variable in tf1.global_variables()}
        missing = sorted(set(self._names) - found.keys())
        if missing:
            raise UserError(
                f"publish: the model predicts with the variable {missing[0]}, which its training does not have; have "
                "model_fn make the same variables in both modes"
            )
        self._variables = {name: found[name] for name in self._names}

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._offer(session)

    def act(self, run_context: tf1.train.SessionRunContext) -> None:
        self._offer(run_context.session)
        self._period.begin()

    def end(self, session: tf1.Session) -> None:
        self._offer(session)
        with self._clock.within(self.phase):
            self._publisher.finish(self._grace_secs / _SHARE_OF_GRACE if self._is_stopping() else _LAST_SECONDS)

    def _offer(self, session: tf1.Session) -> None:
        self._catch_up()
        self._publisher.offer(self.step, session.run(self._variables))


class EvaluationHook(PeriodicHook):
    """Evaluates after each step at which the period is due, and at the end. Stops training if `evaluate` returns True.

    All ranks take part.

    Args:
      evaluate: f(session, step) -> whether to stop training; a collective.
      stop: once a signal stops the training, the hook no longer evaluates.
    """

    phase, order = "evaluation", Order.EVALUATE

    def __init__(
        self,
        evaluate: Callable[[tf1.Session, int], bool],
        period: EverySteps,
        clock: Clock | None = None,
        stop: StopHook | None = None,
    ) -> None:
        super().__init__(period, clock)
        self._evaluate, self._stop = evaluate, stop
        self._evaluated: int | None = None

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._evaluated = self.step

    def act(self, run_context: tf1.train.SessionRunContext) -> None:
        if self._evaluate_once(run_context.session):
            run_context.request_stop()

    def end(self, session: tf1.Session) -> None:
        with self._clock.within(self.phase):
            self._evaluate_once(session)

    def _evaluate_once(self, session: tf1.Session) -> bool:
        if self._evaluated == self.step or (self._stop is not None and self._stop.signal):
            return False
        stop = self._evaluate(session, self.step)
        self._evaluated = self.step
        return stop
