"""The session of a training, an evaluation or a prediction."""

import contextlib
from collections.abc import Iterable
from typing import Any

import tensorflow.compat.v1 as tf1

from ctr_trainer.checkpoint import model_directory
from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.checkpoint.model_directory import refusing_other_variables
from ctr_trainer.estimator.training import Training
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.messages.errors import UserError


def training_session(training: Training, hooks: list[tf1.train.SessionRunHook]) -> tf1.train.MonitoredSession:
    """Creates the `MonitoredTrainingSession` of a training, whose graph is the current one. A collective.

    Rank 0 restores the dense variables from the checkpoint that the file `checkpoint` in the model directory names, and
    then broadcasts its variables to all ranks. The session itself adds the `SummarySaverHook` of rank 0. `MetricLines`
    replaces its `StepCounterHook`, and `Saving`, which saves dense variables and rows together, its
    `CheckpointSaverHook`.

    Raises UserError: the checkpoint does not have the graph's variables.
    """
    job, is_chief, given = training.job, distributed.is_chief(), training.model.spec.scaffold
    config, model_dir = job.config, job.staging.path
    with restored_here(job.checkpoint) as restored, refusing_other_variables(restored, tf1.global_variables()):
        return tf1.train.MonitoredTrainingSession(
            checkpoint_dir=model_directory.tensorflow_directory(restored, model_dir) if is_chief else None,
            summary_dir=model_dir if is_chief else None,
            scaffold=tf1.train.Scaffold(saver=training.saver, copy_from_scaffold=given),
            hooks=[distributed.broadcast_hook(), _OneSessionHook(), *hooks],
            config=distributed.session_config(config.threads, config.mixed_precision, config.session_config),
            save_checkpoint_secs=None,
            save_checkpoint_steps=None,
            log_step_count_steps=None,
            save_summaries_steps=config.summary_steps,
        )


def session_of(
    checkpoint: Checkpoint | None, hooks: Iterable[tf1.train.SessionRunHook], config: RunConfig
) -> tf1.train.MonitoredSession:
    """Creates the `MonitoredSession` of the current graph, to evaluate or predict with a checkpoint. A collective.

    Rank 0 restores the dense variables and broadcasts its variables to all ranks.

    Raises UserError: the checkpoint does not have the graph's variables.
    """
    with restored_here(checkpoint) as restored, refusing_other_variables(restored, tf1.global_variables()):
        creator = tf1.train.ChiefSessionCreator(
            tf1.train.Scaffold(saver=tf1.train.Saver(max_to_keep=None)),
            config=distributed.session_config(config.threads, given=config.session_config),
            # Not `checkpoint_dir`: its state file has the absolute path to which the checkpoint was first written.
            checkpoint_filename_with_path=restored.dense_prefix if restored else None,
        )
        return tf1.train.MonitoredSession(creator, [distributed.broadcast_hook(), *hooks])


def restored_here(checkpoint: Checkpoint | None) -> contextlib.AbstractContextManager[Checkpoint | None]:
    """Yields the `Checkpoint` with its dense variables in a local file; None without one and on ranks other than 0."""
    return checkpoint.with_local_dense() if checkpoint and distributed.is_chief() else contextlib.nullcontext()


class _OneSessionHook(tf1.train.SessionRunHook):
    """Ends a training whose session was lost, because TensorFlow would restore variables older than the rows."""

    _made = False

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        if self._made:
            raise UserError(
                "TensorFlow lost its session, and would resume with dense variables that are older than the rows. "
                "Restart the training: it resumes from its last checkpoint"
            )
        self._made = True
