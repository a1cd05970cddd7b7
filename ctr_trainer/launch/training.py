"""What the model directory tells of a training that runs in other processes."""

import contextlib
import dataclasses
import re
import time

from ctr_trainer.files.paths import path_of
from ctr_trainer.files.staging import local_directory
from ctr_trainer.launch.hosts import listed, slots
from ctr_trainer.launch.record import Restart
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import heartbeat

# Names that checkpoints have. They are written out here, so that the launcher need not import TensorFlow.
_CHECKPOINTS, _MANIFEST, _STEP = "checkpoints", "manifest.json", re.compile(r"step-(\d{10})")


@dataclasses.dataclass(frozen=True)
class Saved:
    """A finished checkpoint.

    Attributes:
      step: its global step; 0 for none.
      time: when its manifest was written, in seconds since 1970.
    """

    step: int = 0
    time: float = 0.0

    @staticmethod
    def newest(model_dir):
        """-> that of the last step."""
        directory, found = path_of(model_dir) / _CHECKPOINTS, []
        with contextlib.suppress(OSError, UserError):  # The next look may succeed.
            for path in directory.iterdir():
                with contextlib.suppress(OSError):  # It is being written, or is removed just now.
                    if step := _STEP.fullmatch(path.name):
                        found.append(Saved(int(step[1]), (path / _MANIFEST).stamp()[1] / 1e9))
        return max(found, key=lambda saved: saved.step, default=Saved())


class Reached:
    """How far the training has come since a start of its workers.

    Args:
      model_dir: of the training, a path or a URL.
      attempt: `Attempt`.

    Attributes:
      saved: the newest `Saved`.
      trained: the last step that a rank is known to have finished, by the ranks' heartbeats; 0 for none.
      trained_at: when that was known last, in seconds since 1970.
    """

    def __init__(self, model_dir, attempt):
        self._model_dir, self._attempt = model_dir, attempt
        self.saved = Saved.newest(model_dir)
        self.trained, self.trained_at, self._trains_since = 0, 0.0, None

    def look(self):
        """Looks again. -> whether there is a new checkpoint"""
        beats = [heartbeat.read(local_directory(self._model_dir), rank) for rank in range(self._attempt.workers)]
        beats = [beat for beat in beats if beat is not None]
        # What ranks of an earlier start have left says nothing; before its first step a rank is in step 0.
        beats = [beat for beat in beats if beat.alive >= self._attempt.began and beat.step and beat.phase != "start"]
        if beats:
            last = max(beats, key=lambda beat: (beat.step, beat.alive))
            self.trained, self.trained_at = max(last.step - 1, 0), last.alive
            self._trains_since = self._trains_since or last.since
        before, self.saved = self.saved, Saved.newest(self._model_dir)
        return self.saved.step > before.step

    def trains_for(self, seconds):
        """-> whether the workers have been training for so long."""
        return self._trains_since is not None and time.time() - self._trains_since > seconds

    def restart(self, reason, hosts):
        """-> the `Restart` that follows on this start.

        Args:
          reason: sentence.
          hosts: tuple of `Host`, where the workers are started.
        """
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
            step=self.saved.step,
            steps_lost=steps,
            seconds_lost=round(max(self.trained_at - since, 0.0), 1) if steps else 0.0,
        )


def where_it_goes_on(model_dir):
    """-> a sentence for who starts the same command again."""
    saved = Saved.newest(model_dir)
    if not saved.step:
        return f"There is no checkpoint in {model_dir} yet: the same command starts from the beginning"
    return f"The last checkpoint in {model_dir} is of step {saved.step}: the same command goes on from it"
