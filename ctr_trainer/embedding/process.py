"""A service that a trainer starts for itself."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

from ctr_trainer.errors import UserError

_POLL_SECONDS = 0.02
_STOP_SECONDS = 15
_LOG_TAIL_BYTES = 2000
_PACKAGE_ROOT = str(pathlib.Path(__file__).resolve().parents[2])


class LocalService:
    """An embedding service in a child process on this machine, which ends when this process ends, however it ends.

    A context manager: leaving it stops the service.

    Attributes:
      address: `host:port`.
      pid: the child's process id.
    """

    def __init__(self, data_dir, log_file, timeout, cores=None):
        """Starts the service and waits until it answers.

        Args:
          data_dir: the directory that its snapshots lie under.
          log_file: where its output goes, appended.
          timeout: seconds to wait.
          cores: that the service may use; None for those of this process.

        Raises:
          UserError: it ended or did not answer in time; shows the end of its log.
        """
        self._log_file = log_file
        with tempfile.TemporaryDirectory() as directory:
            port_file = pathlib.Path(directory) / "address"
            with open(log_file, "ab") as log:
                # Its own session: a Ctrl-C at the terminal is for the trainer, which may still save through it.
                self._process = subprocess.Popen(
                    self._command(data_dir, port_file),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(_python_path())},
                    start_new_session=True,
                )
            self.pid = self._process.pid
            if cores:
                os.sched_setaffinity(self.pid, cores)
            try:
                self.address = self._wait_for(port_file, timeout)
            except BaseException:
                self.stop()
                raise

    def stop(self):
        """Ends the service: SIGTERM, and after a while SIGKILL."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)
        self._process.stdin.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _command(self, data_dir, port_file):
        arguments = ["--bind=127.0.0.1:0", f"--data_dir={data_dir}", f"--port_file={port_file}", "--exit_with_stdin"]
        arguments.append("--nosave_at_exit")  # Its trainer has its own checkpoints.
        return [sys.executable, "-m", "ctr_trainer", "serve", *arguments]

    def _wait_for(self, port_file, timeout):
        deadline = time.monotonic() + timeout
        while not port_file.exists():
            if self._process.poll() is not None:
                status = self._process.returncode
                raise UserError(f"the embedding service ended with status {status}: {self._log_tail()}")
            if time.monotonic() > deadline:
                raise UserError(f"the embedding service did not answer within {timeout:g} s: {self._log_tail()}")
            time.sleep(_POLL_SECONDS)
        return port_file.read_text()

    def _log_tail(self):
        with open(self._log_file, "rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES, 0))
            return f"its log {self._log_file} ends with\n{log.read().decode(errors='replace')}"


def _python_path():
    inherited = os.environ.get("PYTHONPATH")
    return [_PACKAGE_ROOT, inherited] if inherited else [_PACKAGE_ROOT]
