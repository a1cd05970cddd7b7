"""A process that another one starts, and that ends with it."""

import contextlib
import os
import pathlib
import subprocess

from ctr_trainer.processes import hardware

_STOP_SECONDS = 15
_LOG_TAIL_BYTES, _MOST_LOG_BYTES = 2000, 64 << 20
_PACKAGE_ROOT = str(pathlib.Path(__file__).resolve().parents[2])


class Child:
    """A command in a child process that can import this package; it ends once its standard input closes.

    So it ends with this process, however this one ends.

    A context manager: leaving it stops the child. It has a session of its own: a Ctrl-C at the terminal is for this
    process, which may still need the child for its end.

    Args:
      command: list of its program and arguments.
      log_file: where its output goes, appended; one of more than 64 MiB is first renamed to `NAME.1`.
      cores: that it may use; None for those of this process.
      environment: dict of variables that it has unless this process has them.

    Attributes:
      log_file: as above.
      pid: its process id.
    """

    def __init__(self, command, log_file, cores=None, environment=None):
        self.log_file = log_file
        _rotate(log_file)
        path = os.pathsep.join(filter(None, (_PACKAGE_ROOT, os.environ.get("PYTHONPATH"))))
        with open(log_file, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**(environment or {}), **os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.keep_on(cores)

    def keep_on(self, cores):
        """See `hardware.keep_on`."""
        hardware.keep_on(self.pid, cores)

    @property
    def status(self) -> int | None:
        """The exit status, negative after a signal; None while the process runs."""
        return self._process.poll()

    def ended(self) -> str | None:
        """Returns how the process ended by itself, with the end of its log; None while it runs."""
        status = self.status
        return None if status is None else f"its process ended with status {status}; {log_tail(self.log_file)}"

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


def _rotate(log_file: str | os.PathLike) -> None:
    """Renames a log that has grown large to `NAME.1`, in place of an earlier one."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.getsize(log_file) > _MOST_LOG_BYTES:
            os.replace(log_file, f"{os.fspath(log_file)}.1")


def log_tail(log_file):
    """-> the end of a log, and whose it is."""
    try:
        with open(log_file, "rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES, 0))
            return f"its log {log_file} ends with\n{log.read().decode(errors='replace').rstrip()}\n"
    except OSError as error:
        return f"its log {log_file}: {error.strerror}"
