"""Training with a session and a loop that the user's program provides."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.checkpoint.model_directory import tensorflow_directory
from ctr_trainer.estimator.estimator import Estimator
from ctr_trainer.estimator.run_summary import measured
from ctr_trainer.estimator.session import restored_here
from ctr_trainer.estimator.step import OwnLoopHook, OwnStepHook, TrainingSteps
from ctr_trainer.estimator.training import open_training
from ctr_trainer.estimator.training_hooks import training_hooks
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.ranks.meetings import StopRequest
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class OwnLoop:
    """The parts that a program passes to its own `MonitoredTrainingSession` and training loop.

    Attributes:
      train_op: operation of a step, for `session.run`.
      loss: scalar tensor.
      hooks: for the session, after `hvd.BroadcastGlobalVariablesHook(0)`. They feed batches and rows, train and sync
        the rows, save them together with the dense variables, and log rates, AUC and means.
      checkpoint_dir: the argument `checkpoint_dir` of the session on rank 0, together with `save_checkpoint_secs=None`.
        Other ranks pass None.
    """

    train_op: tf.Operation
    loss: tf.Tensor
    hooks: list[tf1.train.SessionRunHook]
    checkpoint_dir: str


@contextlib.contextmanager
def own_loop(
    model_fn: Callable[..., EstimatorSpec],
    input_fn: Callable[..., Any],
    model_dir: str,
    config: RunConfig = RunConfig(),  # noqa: B008, frozen
    params: Any = None,
) -> Iterator[OwnLoop]:
    """Builds the graph of a model, and yields the parts for your own training loop. Resumes the newest checkpoint.

    A collective: all ranks call it with equal arguments, after `hvd.init`. `examples/horovod_loop.py` is a complete
    program.

    Args:
      model_fn, params: see `Estimator`. Its `train_op` must exchange the gradients of all trainable variables.
      input_fn: see `Estimator.train`. To resume, it must declare `position` and pass it to its `BatchReader`.
      model_dir: directory of the checkpoints: a path or a URL.
      config: `RunConfig`.

    Yields:
      `OwnLoop`.

    Raises:
      UserError: `model_dir` has dense variables without rows, rows without dense variables, or another model.
    """
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(Estimator(model_fn, model_dir, params, config).open_job(input_fn))
        training = stack.enter_context(open_training(job))
        restored = stack.enter_context(restored_here(job.checkpoint))
        if training.model.step.run_length.accumulation_steps > 1:
            raise UserError("accumulation_steps: a program with its own loop makes one run for each step: leave it out")
        hooks = training_hooks(training)
        steps = TrainingSteps(training, StopRequest(), hooks)
        first = OwnStepHook(steps, training.input_ends)
        stack.enter_context(training.closing([*hooks.all, steps, first], lambda: steps.steps > 0))
        directory = tensorflow_directory(restored, job.staging.path)
        *own, last = hooks.all
        own = [first, *own, OwnLoopHook(steps, training.feed), last]
        yield OwnLoop(training.model.step.train_op, training.model.spec.loss, own, directory)
        measured(training, steps, hooks)
