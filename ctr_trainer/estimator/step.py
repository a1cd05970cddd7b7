"""The steps of a training: what happens in each of them, before the first and after the last, in this order."""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.evaluated_training import EvaluatedTraining
from ctr_trainer.estimator.feed import Feed
from ctr_trainer.estimator.observation import InputEnds
from ctr_trainer.estimator.training import Training
from ctr_trainer.estimator.training_hooks import TrainingHooks
from ctr_trainer.models.layers.dropout import micro_batch
from ctr_trainer.ranks import distributed, meetings
from ctr_trainer.ranks.endings import report
from ctr_trainer.ranks.meetings import StopRequest
from ctr_trainer.system.messages.errors import StoppedInOrder, UserError


class TrainingExtension(Protocol):
    """Work after each step of a training, on this rank."""

    def status_line(self) -> str:
        """Returns a `[RunStatus]` line for the log."""

    def begin(self, session: tf1.Session, step: int) -> None:
        """Called before the first step, when rows and variables are restored."""

    def after_step(self, session: tf1.Session, step: int) -> None:
        """Called after each step, when its rows are trained and what was due is synced and saved."""

    def finish(self, session: tf1.Session, step: int) -> None:
        """Called once after the last step, at the orderly end, when the last checkpoint is saved."""

    def results(self) -> dict[str, Any]:
        """Returns fields of `TrainResult`."""

    def close(self) -> None:
        """Ends the work. Also called after an error."""


class TrainingSteps:
    """Trains the steps of a session, one after another, and does what is due after each of them.

    Construct it while the training graph is the default graph.

    Signals make the request `stop` while steps run.

    Attributes:
      step: the global step that ended last.
      steps: number of steps of this run.
      seconds: training time of these steps, with syncs and checkpoints but without the start and evaluations.
      is_over: whether the last step has ended.
      error: the `StoppedInOrder` that ends a training whose checkpoint is saved; None if no signal stops it.
    """

    def __init__(
        self,
        training: Training,
        stop: StopRequest,
        hooks: TrainingHooks,
        evaluation: EvaluatedTraining | None = None,
        extensions: Sequence[TrainingExtension] = (),
    ) -> None:
        self._training, self._stop, self._hooks = training, stop, hooks
        self._evaluation, self._extensions = evaluation, extensions
        self._feed, self._dense, self._clock = training.feed, training.dense, training.clock
        self._micro_batch, self._global_step = micro_batch(), tf1.train.get_or_create_global_step()
        self.step, self.steps, self.seconds = training.job.start, 0, 0.0
        self.is_over = False
        self.error: StoppedInOrder | None = None

    def begin(self, session: tf1.Session) -> None:
        """Prepares the first step, after the session has restored the variables. A collective."""
        training = self._training
        restored = int(session.run(self._global_step))
        if restored != self.step:
            raise UserError(
                f"the session has dense variables of step {restored}, and the rows of {training.job.model_dir} are of "
                f"step {self.step}: the checkpoint is damaged, or a program's own session was not opened on rank 0 by "
                "MonitoredTrainingSession(checkpoint_dir=loop.checkpoint_dir, save_checkpoint_secs=None, ...)"
            )
        self._clock.step = self.step
        if self._evaluation:
            self._evaluation.begin(session)  # May lower the learning rates.
        self._feed.begin_training(session, self.step)
        training.saves.begin()
        for extension in self._extensions:
            extension.begin(session, self.step)
        ending = report.running()
        ending.explain = distributed.watchdog().explanation
        ending.signals.hand_to(self._stop, training.job.config.grace_secs)
        last = training.job.last_step
        self.is_over = last is not None and self.step >= last  # Then `finish` makes the missing evaluation.
        if self._evaluation and not self.is_over:
            self.is_over = self._evaluation.resume(session, self.step)

    def train_step(self, session: tf1.train.MonitoredSession, unhooked: tf1.Session) -> None:
        """Trains one step: reads, looks up, runs the graph, trains the rows, then does whatever is due.

        `session` runs the graph, with its hooks; `unhooked` is the session below it, for what is due.
        """
        feed, dense = self._feed, self._dense
        with self.waiting(), self._training.input_ends.noticed():  # Tells the other ranks if this rank's input ends.
            self.begin_step()
            for number in range(1, dense.micro_batches):
                fed = feed.next()
                fetches = {"accumulate": dense.accumulate, "feed": feed.fetches}
                fetched = session.run(fetches, {self._micro_batch: number, **fed.feed})
                feed.add(fed, fetched["feed"])
            fed = feed.next()  # A batch that a thread has read ahead; rows that are missing come from the service.
            fetches = {"train_op": dense.train_op, "feed": feed.last_fetches}
            fetched = session.run(fetches, fed.feed)  # The dense tower and the gradient exchange.
            feed.train(fed, fetched["feed"])  # The rows, by their gradients.
            self.end_step(unhooked)

    def waiting(self) -> AbstractContextManager[None]:
        """Returns the context in which the watchdog looks after the next step."""
        return distributed.watchdog().waiting(f"step {self.step + 1} and its gradient exchange")

    def begin_step(self) -> None:
        """Makes the messages of this and the other ranks name the next step."""
        self._clock.step = self.step + 1

    def end_step(self, session: tf1.Session) -> None:
        """Ends a step whose rows were trained, and does what is due after it."""
        training, clock = self._training, self._clock
        self.step, self.steps, self.seconds = self.step + 1, self.steps + 1, clock.training_seconds()
        told = training.meetings.after_step(self.step, self._stop.asked, training.saves.is_over())
        self._dense.end_step(session, self.step, clock)  # With --dense_sync_steps, averages the workers' variables.
        self._feed.sync_if_due(self.step)  # Every --sync_steps steps.
        training.save.look()
        saves = training.saves.is_due(self.step) or told.is_over
        if saves:
            with clock.within("checkpoint"):
                training.save.begin(session, self.step)
                training.saves.begin()
        for extension in self._extensions:
            extension.after_step(session, self.step)
        self.is_over = bool(told.signal) or self._feed.has_ended or self.step == training.job.last_step
        if self._evaluation and not told.signal:
            stops = self._evaluation.evaluate_if_due(session, self.step, saves)
            self.is_over = self.is_over or stops

    def finish(self, session: tf1.Session) -> None:
        """Does what is due at the orderly end: the last sync, checkpoint, publication and evaluation. A collective."""
        training, clock = self._training, self._clock
        if self._hooks.batches:
            self._hooks.batches.finish()
        with clock.within("sync"):
            self._feed.flush()
        with clock.within("checkpoint"):
            if self.steps:
                training.save(session, self.step)
        for extension in self._extensions:
            extension.finish(session, self.step)
        self._hooks.metrics.finish()
        told = training.meetings.meet(self.step, self._stop.asked, is_over=False)
        if not told.signal and self._evaluation and not self._evaluation.finish(session, self.step):
            told = training.meetings.meet(self.step, self._stop.asked, is_over=False)  # A signal has cancelled it.
        if told.signal:
            asked = [rank for rank, signal in enumerate(told.signals) if signal]
            whom = "" if len(asked) == distributed.size() else f" to rank {', '.join(map(str, asked))}"
            text = (
                f"stopped by {meetings.name_of(told.signal)}{whom} after step {self.step}; the checkpoint "
                f"{training.save.path} is saved: the same command resumes from there"
            )
            self.error = StoppedInOrder(text, told.signal)
            report.running().stops_in_order(self.error)  # Before a signal would end the process.
        self.close()

    def close(self) -> None:
        """Lets signals end the process again. Also called after an error."""
        report.running().signals.keep()


class OwnStepHook(tf1.train.SessionRunHook):
    """Has the watchdog look after each step of a program's own loop, and tells the other ranks when the loop has ended.

    It must be the first hook, because the `end` of others waits for all ranks.
    """

    def __init__(self, steps: TrainingSteps, input_ends: InputEnds) -> None:
        self._steps, self._input_ends, self._waiting = steps, input_ends, contextlib.ExitStack()

    def before_run(self, run_context: tf1.train.SessionRunContext) -> None:
        self._waiting.enter_context(self._steps.waiting())

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self.close()

    def end(self, session: tf1.Session) -> None:
        self.close()
        self._input_ends.ended()

    def close(self) -> None:
        """Ends the wait of a step. Also called after an error."""
        self._waiting.close()


class OwnLoopHook(tf1.train.SessionRunHook):
    """Trains the rows in the steps of a program that calls `session.run` itself, and does what is due after each.

    It is the only hook that changes rows, checkpoints or positions. Its order among the hooks is the program's.
    """

    def __init__(self, steps: TrainingSteps, feed: Feed) -> None:
        self._steps, self._feed = steps, feed

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        self._steps.begin(session)

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs:
        self._steps.begin_step()
        self._fed = self._feed.next()
        return tf1.train.SessionRunArgs(self._feed.last_fetches, self._fed.feed)

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self._feed.train(self._fed, run_values.results)
        self._steps.end_step(run_context.session)
        if self._steps.is_over:
            run_context.request_stop()

    def end(self, session: tf1.Session) -> None:
        self._steps.finish(session)
