"""What is kept of each restart: a line of the log, and an entry of `train_summary.json`."""

import dataclasses
import logging

from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError

_SUMMARY = "train_summary.json"  # As `commands.train` names it.
_KEY = "restarts"
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class Restart:
    """A restart of all workers.

    Attributes:
      reason: sentence, without its full stop.
      time, lost_at: of the loss, as `2026-01-31 12:00:00`, and in seconds since 1970.
      workers_before, workers: numbers of workers.
      hosts: as `-H` takes them.
      step: step of the checkpoint that training resumes from; 0 for the beginning, None if the directory did not tell.
      steps_lost: steps after the checkpoint that the workers are known to have finished.
      seconds_lost: of training since the checkpoint, or since the start of the workers.
      seconds_to_train_again: from the loss until a step after the checkpoint is finished; None if that is not known.
    """

    reason: str
    time: str
    lost_at: float
    workers_before: int
    workers: int
    hosts: str
    step: int | None
    steps_lost: int
    seconds_lost: float
    seconds_to_train_again: float | None = None

    def line(self):
        """-> what the log says when the workers are started again."""
        goes_on = f"from the checkpoint of step {self.step}" if self.step else "from the beginning"
        if self.step is None:
            goes_on = "from the last checkpoint, whose step is not known now,"
        workers = f"{self.workers} worker{'s' * (self.workers > 1)}"
        before = "" if self.workers == self.workers_before else f", {self.workers_before} before"
        return (
            f"{self.reason.rstrip('.')}. Lost {self.steps_lost} steps, {self.seconds_lost:.1f} s of training; going on "
            f"{goes_on} with {workers} on {self.hosts}{before}"
        )


def summary_stamp(model_dir: str) -> tuple[int, int] | None:
    """Returns the size and the time of the last change of a training's summary; None if there is none to be read."""
    try:
        return (path_of(model_dir) / _SUMMARY).stamp()
    except (OSError, UserError):  # There is none, or the store does not answer: the workers may still find it.
        return None


def add_to_summary(model_dir: str, restarts: list[Restart], before: tuple[int, int] | None) -> None:
    """Adds the restarts to the summary of the training.

    Args:
      model_dir: directory of the training, a path or a URL.
      restarts: list of `Restart`.
      before: `summary_stamp` at the start of the training: a summary that still has it is of another training, and
        stays as it is.
    """
    path = path_of(model_dir) / _SUMMARY
    try:
        if path.exists() and path.stamp() != before:
            summary = path.read_json("`train` writes it anew")
            path.write_json({**summary, _KEY: [dataclasses.asdict(restart) for restart in restarts]})
    except (OSError, UserError) as error:  # The training has ended well all the same.
        _log.warning("the restarts are not in %s: %s", path, error)
