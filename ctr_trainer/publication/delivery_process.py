"""Runs the delivery of a spool in a child process, and restarts it if it ends."""

import dataclasses
import logging
import sys
import time

from ctr_trainer.messages import log_lines
from ctr_trainer.processes.child import Child

_log = logging.getLogger(__name__)
_FIRST_SECONDS, _MOST_SECONDS = 1.0, 60.0


class DeliveryKeeper:
    """Starts the process, and starts it again if it ends, after a while that grows.

    Args:
      start: f() -> `DeliveryProcess`.
      clock: f() -> seconds.
    """

    def __init__(self, start, clock=time.monotonic):
        self._start, self._clock = start, clock
        self._process, self._start_at, self._wait = None, 0.0, _FIRST_SECONDS
        self._started = 0.0

    def keep(self):
        """Looks after the process; to be called now and then."""
        if self._process is None:
            if self._clock() >= self._start_at:
                self._process, self._started = self._start(), self._clock()
            return
        ended = self._process.ended()
        if ended is None:
            return
        self._process.stop()
        if self._clock() - self._started > _MOST_SECONDS:
            self._wait = _FIRST_SECONDS
        _log.error("the delivery of the publication has ended: %s\nStarting it again in %.0f s", ended, self._wait)
        self._process, self._start_at = None, self._clock() + self._wait
        self._wait = min(2 * self._wait, _MOST_SECONDS)

    def close(self):
        """Ends the process."""
        if self._process is not None:
            self._process.stop()
            self._process = None


class DeliveryProcess(Child):
    """`publish --input=SPOOL --to=URL` in a child process, which ends when this process ends, however it ends.

    A context manager: leaving it stops the process. What it has delivered stands in the spool: `read_delivered`.

    Args:
      spool: path or URL of the publication that the training writes.
      to: URL of the target.
      redis: `RedisFiles` of a cluster.
      log_file: where its output goes, appended.
      cores: that it may use; None for those of this process.
    """

    def __init__(self, spool, to, redis, log_file, cores=None):
        flags = [f"--{name}={value}" for name, value in dataclasses.asdict(redis).items() if value]
        command = [sys.executable, "-m", "ctr_trainer", "publish", f"--input={spool}", f"--to={to}"]
        super().__init__([*command, *flags, f"--log_format={log_lines.installed_form()}"], log_file, cores)
