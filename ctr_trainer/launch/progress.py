"""Reads the progress of a training from its model directory, and records its restarts."""

import contextlib
import dataclasses
import logging
import re
import time

from ctr_trainer.launch.attempt import Attempt
from ctr_trainer.launch.hosts import Host, listed, slots
from ctr_trainer.ranks.endings.states import read_state
from ctr_trainer.system.files.paths import is_local, path_of
from ctr_trainer.system.files.staging import local_directory
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes.waiting import call_within

_SUMMARY = "train_summary.json"  # The same name as in `commands.train`.
_KEY = "restarts"
_log = logging.getLogger(__name__)
# Seconds between two requests to a store, and the longest wait for its answer.
_STORE_PERIOD_SECONDS, _STORE_SECONDS = 2.0, 3.0
# The names of checkpoint files are repeated here, because their module loads Numba's kernels, which takes seconds.
_CHECKPOINTS, _MANIFEST, _STEP = "checkpoints", "manifest.json", re.compile(r"step-(\d{10})")


@dataclasses.dataclass
class Restart:
    """A restart of all workers.

    Attributes:
      time, lost_at: time of the loss as text, such as `2026-01-31 12:00:00`, and in seconds since 1970.
      hosts: the hosts in the format of `-H`.
      step: step of the checkpoint from which training resumes; 0 for the beginning, None if unknown.
      steps_lost: number of steps after the checkpoint that the workers are known to have completed.
      seconds_lost: seconds of training since the checkpoint, or since the start of the workers.
      seconds_to_train_again: seconds from the loss until a step after the checkpoint was completed; None if unknown.
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

    def line(self) -> str:
        """Returns the log line of the restart."""
        place = f"from the checkpoint of step {self.step}" if self.step else "from the beginning"
        if self.step is None:
            place = "from the last checkpoint, whose step is not known now,"
        workers = f"{self.workers} worker{'s' * (self.workers > 1)}"
        before = "" if self.workers == self.workers_before else f", {self.workers_before} before"
        return (
            f"{self.reason.rstrip('.')}. Lost {self.steps_lost} steps, {self.seconds_lost:.1f} s of training; resuming "
            f"{place} with {workers} on {self.hosts}{before}"
        )


def summary_stamp(model_dir: str) -> tuple[int, int] | None:
    """Returns the size and the modification time of a training's summary; None if it cannot be read."""
    try:
        return (path_of(model_dir) / _SUMMARY).stamp()
    except (OSError, UserError):  # There is no summary, or the store does not currently answer.
        return None


def add_to_summary(model_dir: str, restarts: list[Restart], before: tuple[int, int] | None) -> None:
    """Adds the restarts to the summary, unless it still has the stamp `before` of an earlier training's summary."""
    path = path_of(model_dir) / _SUMMARY
    try:
        if path.exists() and path.stamp() != before:
            summary = path.read_json("`train` writes it again")
            path.write_json({**summary, _KEY: [dataclasses.asdict(restart) for restart in restarts]})
    except (OSError, UserError) as error:  # The training itself has succeeded.
        _log.warning("cannot add the restarts to %s: %s", path, error)


@dataclasses.dataclass(frozen=True)
class Saved:
    """A complete checkpoint: its step, 0 for none, and the time of its manifest in seconds since 1970."""

    step: int = 0
    time: float = 0.0

    @staticmethod
    def newest(model_dir: str) -> "Saved | None":
        """Returns the checkpoint of the last step; None if the directory or the store cannot currently be read."""
        directory, found = path_of(model_dir) / _CHECKPOINTS, []
        try:
            for path in directory.iterdir() if directory.is_dir() else ():
                with contextlib.suppress(FileNotFoundError):  # The checkpoint is incomplete, or was just removed.
                    if step := _STEP.fullmatch(path.name):
                        found.append(Saved(int(step[1]), (path / _MANIFEST).stamp()[1] / 1e9))
        except (OSError, UserError):
            return None
        return max(found, key=lambda saved: saved.step, default=Saved())


class Reached:
    """The progress of the training since a start of its workers.

    Attributes:
      saved: the newest checkpoint; at first, the newest checkpoint before this start.
      trained: the last step that a rank has completed according to the ranks' states; 0 for none.
      trained_at: time at which this was noticed, in seconds since 1970.
    """

    def __init__(self, model_dir: str, attempt: Attempt, saved: Saved) -> None:
        self._model_dir, self._attempt, self.saved = model_dir, attempt, saved
        self.trained, self.trained_at = 0, 0.0
        self._trains_since: float | None = None
        self._is_known = True  # Whether the last `look` could determine the newest checkpoint.
        self._next_look = 0.0

    def look(self, is_last: bool = False) -> bool:
        """Updates the progress, for the last time if `is_last`. Returns whether there is a new checkpoint."""
        found = (read_state(local_directory(self._model_dir), rank) for rank in range(self._attempt.workers))
        # States of an earlier start, and states before the first step, do not count.
        own = [state for state in found if state and state.attempt == self._attempt.name]
        steps = [state.step - 1 for state in own if state.step and state.phase != "start"]
        if steps:
            self._trains_since = self._trains_since or time.time()
            if max(steps) > self.trained:
                self.trained, self.trained_at = max(steps), time.time()
        before, self.saved = self.saved, self._newest(is_last) or self.saved
        return self.saved.step > before.step

    def _newest(self, is_last: bool) -> Saved | None:
        """Returns the newest checkpoint; None if it is unknown. A store is asked every two seconds."""
        if is_local(self._model_dir):
            found = Saved.newest(self._model_dir)
        elif is_last or time.monotonic() >= self._next_look:
            try:
                found = call_within(_STORE_SECONDS, lambda: Saved.newest(self._model_dir))
            except TimeoutError:
                found = None
            self._next_look = time.monotonic() + _STORE_PERIOD_SECONDS
        else:
            return None
        self._is_known = found is not None
        return found

    def trains_for(self, seconds: float) -> bool:
        """Returns whether the workers have been training for at least this time."""
        return self._trains_since is not None and time.time() - self._trains_since > seconds

    def restart(self, reason: str, hosts: tuple[Host, ...]) -> Restart:
        """Returns the `Restart` on these hosts that follows this start."""
        lost_at = self._attempt.lost_at or time.time()
        steps = max(self.trained - self.saved.step, 0)
        since = max(self.saved.time, self._trains_since or lost_at)
        return Restart(
            reason=reason,
            time=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(lost_at)),
            lost_at=lost_at,
            workers_before=self._attempt.workers,
            workers=slots(hosts),
            hosts=listed(hosts),
            step=self.saved.step if self._is_known else None,
            steps_lost=steps,
            seconds_lost=round(max(self.trained_at - since, 0.0), 1) if steps else 0.0,
        )


def where_it_resumes(model_dir: str) -> str:
    """Returns a sentence that says where the same command resumes."""
    saved = Saved.newest(model_dir)
    if saved is None:
        return f"{model_dir} cannot be read now: the same command resumes from the last checkpoint in it"
    if not saved.step:
        return f"There is no checkpoint in {model_dir} yet: the same command starts from the beginning"
    return f"The last checkpoint in {model_dir} is of step {saved.step}: the same command resumes from it"
