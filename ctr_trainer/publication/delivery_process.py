"""The process that delivers a spool, as a training starts it."""

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys

from ctr_trainer.embedding.service.local_service import log_tail
from ctr_trainer.messages import log_lines

_STOP_SECONDS = 15
_PACKAGE_ROOT = str(pathlib.Path(__file__).resolve().parents[2])


class DeliveryProcess:
    """`publish --from=SPOOL --to=URL` in a child process, which ends when this process ends, however it ends.

    A context manager: leaving it stops the process. What it has delivered stands in the spool: `read_delivered`.

    Args:
      spool: path or URL of the publication that the training writes.
      to: URL of the target.
      redis: `RedisFiles` of a cluster.
      log_file: where its output goes, appended.
      cores: that it may use; None for those of this process.
    """

    def __init__(self, spool, to, redis, log_file, cores=None):
        self._log_file = log_file
        flags = [f"--{name}={value}" for name, value in dataclasses.asdict(redis).items() if value]
        command = [sys.executable, "-m", "ctr_trainer", "publish", f"--from={spool}", f"--to={to}"]
        path = os.pathsep.join(filter(None, (_PACKAGE_ROOT, os.environ.get("PYTHONPATH"))))
        with open(log_file, "ab") as log:
            # Its own session: a Ctrl-C at the terminal is for the trainer, which may still publish a last epoch.
            self._process = subprocess.Popen(
                [*command, *flags, "--exit_with_stdin", f"--log_format={log_lines.installed_form()}"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        self.pid = self._process.pid
        if cores:
            os.sched_setaffinity(self.pid, cores)

    def ended(self):
        """-> how the process ended by itself, with the end of its log; None while it runs."""
        status = self._process.poll()
        return None if status is None else f"its process ended with status {status}; {log_tail(self._log_file)}"

    def stop(self):
        """Ends the process by closing its standard input, and after a while by SIGKILL."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
