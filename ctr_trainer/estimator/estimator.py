"""The Estimator: trains a `model_fn`; `TrainedModel` evaluates it, predicts with it and exports it."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ctr_trainer.estimator import model_directory, retention, warm_start
from ctr_trainer.estimator.evaluated_training import EvaluatedTraining, NoEvaluations
from ctr_trainer.estimator.model_directory import one_job, save_features
from ctr_trainer.estimator.model_selection import is_over
from ctr_trainer.estimator.observation import Observation
from ctr_trainer.estimator.publishing import open_publishing
from ctr_trainer.estimator.saving import Saving
from ctr_trainer.estimator.session import training_session
from ctr_trainer.estimator.train_and_evaluate import EvalSpec
from ctr_trainer.estimator.trained_model import TrainedModel
from ctr_trainer.estimator.training import OptimizerStep, all_closed, stop_hook, stopped_text, training_graph
from ctr_trainer.estimator.training_hooks import training_hooks
from ctr_trainer.files.staging import staged
from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.messages.errors import ServiceLost, StoppedInOrder, UserError
from ctr_trainer.ranks import dense_exchange, distributed, last_words
from ctr_trainer.settings.schedule import check_plateau

tf1 = tf.compat.v1
_log = logging.getLogger(__name__)


class Estimator(TrainedModel):
    """Runs a `model_fn` in a `MonitoredTrainingSession`, each rank on its own share of the input.

    `train`, `evaluate` and `predict` are collectives: all ranks call them alike. Its arguments are those of
    `TrainedModel`.
    """

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[tf1.train.SessionRunHook] | None = (),
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = (),
        evaluation: EvalSpec | None = None,
        resume_from: int | None = None,
    ) -> dict[str, Any] | None:
        """Trains until the input ends or a step is reached, from the newest checkpoint on if there is one.

        Args:
          input_fn: f() -> `BatchReader` or `tf.data.Dataset`, this rank's share of the data. It may declare any of the
            arguments `mode`, `params`, `config`, `position` (where a restarted run resumes its data) and
            `input_context` (`tf.distribute.InputContext`). All ranks must get as many batches: for a
            `tf.data.Dataset`, `RunConfig.uneven_inputs` says what happens if they do not, and
            `RunConfig.equal_inputs` what happens if they get the same batches.
          hooks: more session hooks.
          steps: how many more steps; exclusive with `max_steps`.
          max_steps: the global step to stop at; a checkpoint that is already there ends the call on all ranks.
          saving_listeners: refused if there are any.
          evaluation: an `EvalSpec` to evaluate by on the way; see `train_and_evaluate`.
          resume_from: the step of the checkpoint to go on from; later ones are set aside. None for the newest.

        Returns:
          dict of `workers`, `steps` (done now), `global_step`, `examples` (of all workers, now), `seconds`,
          `examples_per_sec` (of all workers), `input_wait_seconds` (of this rank) and `quality_advice` (see `quality`),
          and with `evaluation` also `evaluation` (the last one's metrics), `evaluation_seconds` and `stopped_early`;
          None where nothing was to do. Evaluations do not count as `seconds`. Besides, what `RunSummary.results` says,
          and with `phase_steps` also `phases` and `load`, of this rank; see `StepTraceHook.results` and
          `LoadHook.results`. After a warm start, on rank 0, `warm_start`: what was taken and what was left.
          With `RunConfig.publish`, on rank 0, `publication`: see `Publisher.results`.
          After a lost service, of what was trained since the checkpoint that all went back to.

        Raises:
          ServiceLost: the embedding service is gone, and was not to be started again, or not so often; names the last
            checkpoint.
          StoppedInOrder: SIGTERM or SIGINT has ended it, and its checkpoint is saved; see `StopHook`. Only in a program
            that handles them by `LastWords.run`, as the command line does.
          UserError: there is no checkpoint of the step `resume_from`; or the training diverged, or cannot go on
            otherwise: then it names the last checkpoint.
        """
        if steps is not None and max_steps is not None:
            raise ValueError("give steps or max_steps, not both")
        if saving_listeners:
            raise UserError("saving_listeners are not called, since a checkpoint also has rows: give a session hook")
        owns = distributed.local_rank() == 0
        with one_job(self.model_dir) as lock, staged(self.model_dir, distributed.is_chief(), owns) as staging:
            try:
                return self._train_or_go_back(
                    *(input_fn, hooks or (), steps, max_steps, evaluation, resume_from, staging, lock)
                )
            finally:
                tf1.summary.FileWriterCache.clear()  # All events are in their files now.

    def _train_or_go_back(self, input_fn, hooks, steps, max_steps, evaluation, resume_from, staging, lock):
        """As `train`, in a directory that is held."""
        checkpoint = self.latest_checkpoint() if resume_from is None else self.find_checkpoint(str(resume_from))
        start = checkpoint.step if checkpoint else 0
        last = start + steps if steps is not None else max_steps
        later = "refused" if resume_from is None else "set-aside"
        restarts = self.config.embedding.service_restarts
        words = last_words.of_this_process()
        words.model_dir = staging.path
        words.going_on = functools.partial(model_directory.resume_text, self.model_dir)
        while True:
            try:
                return self._train(input_fn, hooks, checkpoint, last, evaluation, later, staging, lock)
            except ServiceLost as error:
                going_on = words.going_on()
                if not restarts:
                    raise ServiceLost(f"{str(error).rstrip()}. {going_on}") from None
                restarts -= 1
                words.take_back()
                # All ranks are here: `Guard` kept each of them in step until they agreed.
                _log.error("%s. Starting it again, %d restarts left. %s", error, restarts, going_on)
                checkpoint = self.latest_checkpoint()

    def _train(self, input_fn, hooks, checkpoint, last, evaluation, later, staging, lock):
        start = checkpoint.step if checkpoint else 0
        if last is not None and start >= last:
            return self._nothing_to_do(start, f"it is to stop at step {last}")
        if evaluation and is_over(self.model_dir, evaluation, start):
            return self._nothing_to_do(start, "it was stopped early there; with a higher patience it goes on")
        if checkpoint:
            self._model.check(checkpoint, self.model_dir, training=True)
        if distributed.is_chief():
            if checkpoint:
                _log.info("%s", model_directory.resuming_text(checkpoint, self.model_dir, distributed.size()))
            retention.set_aside(self.model_dir, start, later)
            retention.remove_unfinished(self.model_dir)
            model_directory.point_tensorflow_to(self.model_dir, checkpoint)
        warm = warm_start.warm_start_of(self._warm_start or self.config.warm_start, checkpoint)
        seen = Observation(self.config, staging.path)
        clock = seen.clock
        made = (self.model_fn, self.params, self.config, self.model_dir, self._services)
        with seen.by_others(), training_graph(*made, input_fn, checkpoint, warm, seen, last) as (feed, spec, store):
            if feed.steps == 0:
                return self._nothing_to_do(start, "its data have been read to the end of the last epoch")
            if notes().plateau:
                check_plateau(notes().plateau.patience, evaluation)
            if distributed.is_chief() and not checkpoint:
                accumulation_steps = notes().step_plan.accumulation_steps
                length, epochs = notes().run_length, feed.inputs.epochs
                _log.info("%s", model_directory.starting_text(length, epochs, accumulation_steps, distributed.size()))
            if distributed.is_chief():
                _log.info("%s", notes().step_plan.exchange if distributed.size() > 1 else dense_exchange.exchange())
            features = feed.inputs.features if feed.inputs.fed else None
            if features is not None and distributed.is_chief():
                save_features(self.model_dir, features)
            saver = tf1.train.Saver(max_to_keep=None)
            step = OptimizerStep(spec.train_op, notes().step_plan)
            model = self._model.to_dict(features)
            kept = (self.model_dir, staging, lock)
            save = Saving(saver, feed, store, checkpoint, *kept, self.config, model, step.settle)
            stop = stop_hook(self.config.grace_secs)
            model_fn = self.model_fn, self.params, model["name"]
            publishing = open_publishing(self.config, self.model_dir, *model_fn, feed, store, stop, clock)
            own, measuring = training_hooks(
                *(feed, spec, store, self.config, staging.path, save, last, step, clock, publishing.status_lines)
            )
            own += [stop, *publishing.hooks]
            evaluations = NoEvaluations()
            if evaluation:
                evaluations = EvaluatedTraining(self, evaluation, feed, store, save, start, clock, stop, step.settle)
            observed = seen.of_training([*own, *evaluations.hooks, *hooks], measuring, feed, store)

            named = save.naming_the_last_checkpoint(lambda: seen.step > start)
            with named, all_closed([save, publishing, evaluations, *own]):
                with training_session(
                    *(checkpoint, observed.hooks, staging.path, self.config, saver, spec.scaffold)
                ) as session:
                    if seen.step != start:
                        raise UserError(
                            f"{checkpoint.path} was restored to step {seen.step}, not {start}: it is damaged"
                        )
                    while not session.should_stop():
                        waiting = distributed.watchdog().waiting(f"step {seen.step + 1} and its gradient exchange")
                        with waiting, seen.input_ends.noticed():
                            step(session)
            if stop.signal:
                raise StoppedInOrder(stopped_text(stop, seen.step, save.path), stop.signal)
            results = observed.results()
        return {**results, **evaluations.results(), **warm.results(), **publishing.results()}

    def _nothing_to_do(self, step, why):
        if distributed.is_chief():
            _log.info("nothing to do: the training in %s is at step %d, and %s", self.model_dir, step, why)
