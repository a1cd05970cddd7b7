"""What a training does besides its own work. The modules of `live` are imported only if a setting asks for them."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.training import Training

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

    Call this while the training graph is the default graph. `is_stopping()` returns whether a signal has asked the
    training to end.
    """
    if not training.job.config.publish.to:
        return None
    return importlib.import_module(MODULES["publish"]).open_publishing(training, is_stopping)
