"""The Estimator trains a `model_fn`; its base class `TrainedModel` evaluates, predicts and exports."""

import contextlib
import functools
import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.checkpoint.model_directory import one_job, remove_lost_features, resume_text
from ctr_trainer.data.row_order import is_of
from ctr_trainer.estimator.built_model import TrainingJob
from ctr_trainer.estimator.evaluated_training import EvaluatedTraining, is_missing, is_over
from ctr_trainer.estimator.evaluation import no_examples
from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.estimator.run_summary import measured
from ctr_trainer.estimator.session import training_session
from ctr_trainer.estimator.step import TrainingExtension, TrainingSteps
from ctr_trainer.estimator.train_and_evaluate import EvalSpec, TrainResult, refuse_unless_positive
from ctr_trainer.estimator.trained_model import TrainedModel
from ctr_trainer.estimator.training import open_training
from ctr_trainer.estimator.training_hooks import training_hooks
from ctr_trainer.models.estimator_spec import session_hooks
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.endings import report
from ctr_trainer.ranks.meetings import StopRequest
from ctr_trainer.settings.train_settings import check_plateau
from ctr_trainer.system.files.staging import staged
from ctr_trainer.system.messages.errors import ServiceLost, UserError, followed

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)
_PUBLISHING = "ctr_trainer.live.publication.publishing"


class Estimator(TrainedModel):
    """Runs a `model_fn` in a `MonitoredTrainingSession`, each rank on its own share of the input.

    `train`, `evaluate` and `predict` are collectives: all ranks call them with the same arguments.

    Attributes:
      last_training: the `TrainResult` of the last call of `train`; None if there was nothing to do.
    """

    last_training: TrainResult | None = None

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[tf1.train.SessionRunHook] | None = (),
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = (),
        evaluation: EvalSpec | None = None,
        resume_from: int | None = None,
        next_data: str = "",
    ) -> "Self":
        """Trains until the input ends or a step is reached; resumes from the newest checkpoint if there is one.

        Args:
          input_fn: f() -> `BatchReader` or `tf.data.Dataset`, this rank's share of the data. It may declare any of the
            parameters `mode`, `params`, `config`, `position` (where a restarted run resumes its data) and
            `input_context` (`tf.distribute.InputContext`). All ranks must get the same number of batches: for a
            `tf.data.Dataset`, `RunConfig.uneven_inputs` determines what happens if they do not, and
            `RunConfig.equal_inputs` determines what happens if they get the same batches.
          hooks: additional session hooks.
          steps: number of additional steps; cannot be combined with `max_steps`.
          max_steps: the global step to stop at, counted from the beginning of the current data (see `next_data`); if
            there is a checkpoint of that step, the call only makes its evaluation if that is missing.
          saving_listeners: must be empty.
          evaluation: `EvalSpec` for evaluations during training, see `train_and_evaluate`; None to not evaluate.
          resume_from: step of the checkpoint to resume from; later checkpoints are set aside. None for the newest.
          next_data: `Source.files` of a `BatchReader`'s data. If the checkpoint was trained on other data, `input_fn`
            gets no `position`, and `max_steps`, epochs, learning-rate schedules, early stopping and the best checkpoint
            count from there. "" continues with the checkpoint's data.

        Returns:
          this `Estimator`, whose `last_training` is the result.

        Raises:
          ServiceLost: the embedding service is lost. The message names the last checkpoint.
          StoppedInOrder: SIGTERM or SIGINT has ended the training, and its checkpoint is saved. Only
            programs that use `run_program`, such as the command line, handle these signals.
          UserError: there is no checkpoint of the step `resume_from`, the input has no examples, or an argument is
            wrong; or the training diverged, or cannot continue for another reason. The message names the last
            checkpoint.
          ValueError: both `steps` and `max_steps` are given.
        """
        refuse_unless_positive(steps=steps, max_steps=max_steps)
        hooks = session_hooks(hooks)
        if steps is not None and max_steps is not None:
            raise ValueError("give steps or max_steps, not both")
        if saving_listeners:
            raise UserError("saving_listeners are not called, since a checkpoint also has rows: give a session hook")
        stops_early = bool(evaluation and evaluation.early_stopping_patience)
        with self.open_job(input_fn, steps, max_steps, stops_early, resume_from, next_data) as job:
            ending = report.running()
            ending.directory = job.staging.path
            ending.resume_text = functools.partial(resume_text, self.model_dir)
            try:
                self.last_training = self._train(job, hooks, evaluation)
                return self
            except ServiceLost as error:
                raise ServiceLost(followed(str(error), resume_text(self.model_dir))) from None
            finally:
                tf1.summary.FileWriterCache.clear()  # Closes the event files.
                if not report.has_run():  # What fails later in this process is not of this training.
                    ending.directory, ending.resume_text = "", None

    @contextlib.contextmanager
    def open_job(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        max_steps: int | None = None,
        stops_early: bool = False,
        resume_from: int | None = None,
        next_data: str = "",
    ) -> Iterator[TrainingJob]:
        """Holds the model directory during the block, and yields the job of a training. A collective; see `train`."""
        owns = distributed.local_rank() == 0
        self._take_directory()
        with one_job(self.model_dir) as lock, staged(self.model_dir, distributed.is_chief(), owns) as staging:
            if distributed.is_chief():  # Before the next collective, after which any rank may read them.
                remove_lost_features(self.model_dir)
            checkpoint = self.latest_checkpoint() if resume_from is None else self.find_checkpoint(str(resume_from))
            start, data_begin = (checkpoint.step, checkpoint.data_begin) if checkpoint else (0, 0)
            if checkpoint and next_data and not is_of(checkpoint.position, next_data):
                data_begin = start
            yield TrainingJob(
                model_fn=self.model_fn,
                params=self.params,
                config=self.config,
                model_dir=self.model_dir,
                input_fn=input_fn,
                record=self._model,
                staging=staging,
                lock=lock,
                checkpoint=checkpoint,
                newer_checkpoints="refused" if resume_from is None else "set-aside",
                data_begin=data_begin,
                last_step=start + steps if steps else max_steps and data_begin + max_steps,
                stops_early=stops_early,
                warm_start=self._warm_start or self.config.warm_start,
                services=self._services,
            )

    def _train(
        self, job: TrainingJob, hooks: Sequence[tf1.train.SessionRunHook], evaluation: EvalSpec | None
    ) -> TrainResult | None:
        """Opens the training, restores its checkpoint, trains its steps (see `TrainingSteps`), saves and closes."""
        is_evaluated = evaluation is None or not is_missing(job)
        if job.last_step is not None and job.start >= job.last_step and is_evaluated:
            self._log_nothing_to_do(job, f"it was to stop at step {job.last_step}")
            return None
        if evaluation and is_over(job, evaluation):
            self._log_nothing_to_do(job, "early stopping has ended it there; a higher patience continues it")
            return None
        with open_training(job) as training:
            if training.model.inputs.batches == 0 and not job.start:
                raise no_examples("train on")
            if training.model.inputs.batches == 0 and is_evaluated:
                self._log_nothing_to_do(job, "its data has been read to the end of the last epoch")
                return None
            if training.model.step.plateau:
                check_plateau(training.model.step.plateau.patience, evaluation)
            if distributed.is_chief():
                if not job.checkpoint:
                    length, epochs = training.model.step.run_length, training.model.inputs.epochs
                    _log.info("%s", _starting_text(length, epochs, distributed.size(), job.stops_early, job.last_step))
                _log.info("%s", training.model.step.exchange_text)
            stop = StopRequest()
            evaluations = EvaluatedTraining(self, evaluation, training, stop) if evaluation else None
            extensions: list[TrainingExtension] = []
            if job.config.publish.to:
                live = importlib.import_module(_PUBLISHING)
                extensions += filter(None, [live.open_publishing(training, lambda: bool(stop.asked))])
            lines = [*training.feed.status_lines, *(each.status_line for each in extensions)]
            own = training_hooks(training, lines, hooks)
            steps = TrainingSteps(training, stop, own, evaluations, extensions)
            with (
                training.closing([*extensions, evaluations, *own.all, steps], lambda: steps.steps > 0),
                training_session(training, own.all) as session,
            ):
                unhooked = session.run_step_fn(lambda step_context: step_context.session)
                steps.begin(unhooked)
                with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):  # The input has ended.
                    while not (session.should_stop() or steps.is_over):
                        steps.train_step(session, unhooked)
                steps.finish(unhooked)
            if steps.error:
                raise steps.error
            if not (steps.steps or steps.is_over or training.feed.is_live):
                if not (training.model.inputs.fed and job.start):  # A reader that resumes may be at its end.
                    raise no_examples("train on")
            results = measured(training, steps, own)
        evaluated = evaluations.results() if evaluations else {}
        for extension in extensions:
            evaluated |= extension.results()
        return TrainResult(**results, **evaluated, warm_start=training.warm_start.report)

    def _log_nothing_to_do(self, job: TrainingJob, why: str) -> None:
        if distributed.is_chief():
            _log.info("nothing to do: the training in %s is at step %d, and %s", self.model_dir, job.start, why)


def _starting_text(
    length: RunLength, epochs: int | None, workers: int, stops_early: bool, last_step: int | None
) -> str:
    """Returns the first log line of a training without a checkpoint; `epochs` is None if it is unknown."""
    said, end, at_most = [], length.end(), "at most " * stops_early
    if length.epochs is not None and length.epochs.rows is not None:
        said.append(f"{length.epochs.rows:,} rows an epoch")
    if epochs:
        said.append(f"{at_most}{epochs} epoch{'s' * (epochs > 1)}")
    if end is not None:
        fewer = " (fewer than max_steps: more epochs, or 0, would read on)" if last_step and end < last_step else ""
        said.append(f"{at_most}{end:,} steps{fewer}")
    said.append(f"{workers} worker{'s' * (workers > 1)}")
    return f"starting from step 0: {', '.join(said)}"
