"""What a training does besides its own work, such as publishing the model while it trains."""

from typing import Any, Protocol

import tensorflow.compat.v1 as tf1


class TrainingExtension(Protocol):
    """Work after each step of a training, on this rank."""

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
