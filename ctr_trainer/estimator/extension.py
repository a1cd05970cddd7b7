"""What a training does besides its own work. The modules of `live` are imported only if a setting asks for them."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.training import Training
from ctr_trainer.models.params import params_of_training
from ctr_trainer.ranks import distributed

# Setting -> the module that implements it.
MODULES = {"publish": "ctr_trainer.live.publication.publishing"}


class TrainingExtension(Protocol):
    """Work after each step of a training, on this rank.

    Attributes:
      status_lines: functions f() -> a `[RunStatus]` line for the log.
    """

    @property
    def status_lines(self) -> Sequence[Callable[[], str]]: ...

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


def open_publishing(training: Training, is_stopping: Callable[[], bool]) -> TrainingExtension | None:
    """Returns the extension that publishes a training's model; None on other ranks than 0, and without `publish`.

    Call this while the training graph is the default graph.

    Args:
      is_stopping: f() -> whether a signal has asked the training to end.

    Raises:
      UserError: the model cannot be published.
    """
    job, feed, inputs = training.job, training.feed, training.model.inputs
    if not job.config.publish.to:
        return None
    features: Any = inputs.features
    embeddings = feed.embeddings
    return importlib.import_module(MODULES["publish"]).open_publishing(
        config=job.config.publish,
        model_dir=job.model_dir,
        model_name=job.record.name or "model",
        model_fn=job.model_fn,
        params=params_of_training(job.params),
        trained_features=(features.spec, features.statistics) if inputs.fed else None,
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
