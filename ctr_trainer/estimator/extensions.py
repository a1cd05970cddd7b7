"""What a training may do besides training. The modules of `live` are imported only if a setting asks for them."""

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.hooks.step_hook import Order, StepHook
from ctr_trainer.estimator.training import Training
from ctr_trainer.graph_notes.notes import params_of_this_graph
from ctr_trainer.ranks import distributed

# Setting -> the module that implements it, whose function `open_publishing` is called.
MODULES = {"publish": "ctr_trainer.live.publication.publishing"}


class TrainingExtension(Protocol):
    """Something that follows a training on rank 0, in the training thread, without changing its state."""

    def begin(self, session: tf1.Session, step: int) -> None:
        """Called once, before the first step."""

    def after_step(self, session: tf1.Session, step: int) -> None:
        """Called after each step, when the step is trained, synced and saved."""

    def finish(self, session: tf1.Session, step: int) -> None:
        """Called once at the orderly end of a training, and not after an error."""

    def results(self) -> dict[str, Any]:
        """Returns the figures for the training summary."""

    def status_line(self) -> str:
        """Returns a `[RunStatus]` line for the log."""

    def close(self) -> None:
        """Releases resources. Also called after an error."""


class ExtensionHook(StepHook):
    """Calls a `TrainingExtension` after each step and at the orderly end of a training."""

    order = Order.PUBLISH

    def __init__(self, extension: TrainingExtension) -> None:
        super().__init__()
        self._extension = extension

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._extension.begin(session, self.step)

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self._extension.after_step(run_context.session, self.step)

    def end(self, session: tf1.Session) -> None:
        self._extension.finish(session, self.step)


def open_publishing(training: Training, is_stopping: Callable[[], bool]) -> TrainingExtension | None:
    """Returns the extension that publishes a training's model; None on other ranks than 0, and without `publish`.

    Args:
      is_stopping: f() -> whether a signal has asked the training to end.

    Raises:
      UserError: the model cannot be published.
    """
    job, feed = training.job, training.feed
    if not job.config.publish.to:
        return None
    embeddings, features = feed.embeddings, feed.inputs.features
    return importlib.import_module(MODULES["publish"]).open_publishing(
        config=job.config.publish,
        model_dir=job.model_dir,
        model_name=job.record.name or "model",
        model_fn=job.model_fn,
        params=params_of_this_graph(job.params),
        trained_features=(features.spec, features.statistics) if feed.inputs.fed else None,
        new_keys=feed.new_keys,
        store=training.store,
        tables=[rows.config for rows in embeddings.rows.values()] if embeddings else [],
        stream_state=feed.stream_state,
        # With several workers, another worker may be about to update a row, so rows catch up only at checkpoints and
        # evaluations, for which all workers meet.
        catch_up=embeddings.catch_up if embeddings and distributed.size() == 1 else lambda: None,
        clock=training.clock,
        is_stopping=is_stopping,
        grace_secs=job.config.grace_secs,
    )
