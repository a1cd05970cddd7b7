"""Runs commands to their end, starts processes that end with their parent, and handles termination signals."""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import hardware

_GRACE_SECONDS = 15
_SHOWN_LINES = 30
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STOP_SECONDS = 15
_LOG_TAIL_BYTES, _MOST_LOG_BYTES = 2000, 64 << 20
# The environment variable that marks a process as a `Child`.
CHILD = "CTR_TRAINERCHILD"
_PACKAGE_ROOT = str(pathlib.Path(__file__).resolve().parents[3])


def run_command(
    command: Sequence[object],
    what: str,
    timeout_s: float,
    *,
    env: Mapping[str, str] | None = None,
    show: Callable[[str], object] | None = None,
    merge_stderr: bool = False,
) -> list[str]:
    """Runs a command to its end, and returns the lines of its stdout.

    Args:
      what: description of the command for messages, such as `building Horovod`.
      timeout_s: seconds after which the command, and all processes that it started, are stopped.
      env: complete environment of the command; None for this process's environment.
      show: f(line), called immediately with each line of stdout, without the newline; None to show nothing.
      merge_stderr: whether stderr is merged into stdout. If not, it goes to this process's stderr.

    Raises:
      UserError: the command cannot be started, fails, or takes longer. The message has the last lines, unless shown.
    """
    words = [str(part) for part in command]
    try:
        # The command runs in its own session, so that signals reach the compilers and workers that it started.
        process = subprocess.Popen(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge_stderr else None,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"{what}: cannot start {words[0]}: {error}") from error
    lines: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if show is not None:
                show(lines[-1])

    # A thread reads the pipe, because a process that the command left running may keep the pipe open forever.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    problem = None
    try:
        process.wait(timeout_s)
        if process.returncode != 0:
            problem = f"failed with status {process.returncode}"
    except subprocess.TimeoutExpired:
        problem = f"was stopped: it took more than {timeout_s} s"
    finally:
        if process.poll() is None:  # SIGTERM first, which lets horovodrun end its workers.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    reader.join(_GRACE_SECONDS)
    if problem:
        last = "" if show else "".join(f"\n  {line}" for line in lines[-_SHOWN_LINES:])
        raise UserError(f"{what} {problem}: {' '.join(words)}{last}")
    return lines


def importing_environment() -> dict[str, str]:
    """Returns the environment of a process that can import this package even if it is not installed."""
    path = os.pathsep.join(filter(None, (_PACKAGE_ROOT, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


@contextlib.contextmanager
def default_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets the environment variables that are not set, within the block."""
    added = variables.keys() - os.environ.keys()
    os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def ended_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """Returns a `preexec_fn` for `subprocess.Popen`. The process gets a signal when the thread that calls Popen ends.

    A thread ends when its process ends, even by a kill. Therefore call Popen in the main thread. The process may get
    the signal several times within microseconds, because the other threads of a killed process become its parent until
    they end as well. A handler that is not reentrant then deadlocks: choose SIGKILL.
    """
    parent = os.getpid()

    def ask_the_kernel() -> None:
        if _LIBC.prctl(_PR_SET_PDEATHSIG, number) == 0 and os.getppid() != parent:
            os.kill(os.getpid(), number)  # The parent ended before the call of prctl.

    return ask_the_kernel


@contextlib.contextmanager
def handling_signals(handler: Callable[[int, FrameType | None], Any] | int) -> Iterator[None]:
    """Handles SIGTERM and SIGINT within the block, then restores their handlers. Call it in the main thread."""
    before = {number: signal.signal(number, handler) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextlib.contextmanager
def ending_event(is_child: bool) -> Iterator[threading.Event]:
    """Yields an event that SIGTERM and SIGINT set or, in a `Child`, the end of standard input. For the main thread.

    A `Child` ignores these signals: at a shutdown all processes get SIGTERM, and its parent still needs it.
    """
    event = threading.Event()

    def wait_for_parent() -> None:
        while os.read(sys.stdin.fileno(), 4096):  # Not through sys.stdin, whose lock would be held at exit.
            pass
        event.set()

    # The interrupted main thread may hold the lock of the event in its `wait`, so the handler sets it in a new thread.
    with handling_signals(signal.SIG_IGN if is_child else lambda *_: start_new_thread(event.set, ())):
        if is_child:
            threading.Thread(target=wait_for_parent, daemon=True).start()
        yield event


class Child:
    """A command in a child process that can import this package. A context manager, which stops the child at its end.

    The child ends when its standard input closes, so it ends with this process, even if this process is killed. It has
    its own session, so that a Ctrl-C at the terminal does not reach it: this process may still need the child.

    Args:
      log_file: file to which the child's output is appended. A file of more than 64 MiB is first renamed to `NAME.1`.
      cores: cores that the child may use; None for all cores of this process.
      environment: environment variables for the child, unless this process has variables with these names.
      told: JSON value that `told_by_parent` returns in the child; it must not contain secrets.
    """

    def __init__(
        self,
        command: Sequence[str],
        log_file: str | os.PathLike[str],
        cores: set[int] | None = None,
        environment: Mapping[str, str] | None = None,
        told: Mapping[str, Any] | None = None,
    ) -> None:
        self.log_file = log_file
        with contextlib.suppress(FileNotFoundError):
            if os.path.getsize(log_file) > _MOST_LOG_BYTES:
                os.replace(log_file, f"{os.fspath(log_file)}.1")
        with open(log_file, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**(environment or {}), **importing_environment(), CHILD: json.dumps(dict(told or {}))},
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.keep_on(cores)

    def keep_on(self, cores: set[int] | None) -> None:
        """Runs the process on these cores; see `hardware.keep_on`."""
        hardware.keep_on(self.pid, cores)

    @property
    def status(self) -> int | None:
        """The exit status, which is negative after a signal; None while the process runs."""
        return self._process.poll()

    def ended(self) -> str | None:
        """Returns a message with the exit status and the end of the log; None while the process runs."""
        status = self.status
        return None if status is None else f"its process ended with status {status}; {log_tail(self.log_file)}"

    def stop(self) -> None:
        """Ends the process by closing its standard input, and after 15 s by SIGKILL."""
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def told_by_parent() -> dict[str, Any] | None:
    """Returns the value `told` that the parent passed to this `Child`; None if this process is not a `Child`.

    A `Child` must end when its standard input closes. Processes that it starts later are not marked as a `Child`.
    """
    told = os.environ.pop(CHILD, None)
    return None if told is None else json.loads(told)


def log_tail(log_file: str | os.PathLike[str]) -> str:
    """Returns a text with the name and the end of a log."""
    try:
        return f"its log {log_file} ends with\n{end_of_log(log_file, _LOG_TAIL_BYTES).rstrip()}\n"
    except OSError as error:
        return f"its log {log_file}: {error.strerror}"


def end_of_log(log_file: str | os.PathLike[str], most_bytes: int) -> str:
    """Returns at most so many bytes from the end of a log as text; raises OSError if it cannot be read."""
    with open(log_file, "rb") as log:
        log.seek(max(log.seek(0, os.SEEK_END) - most_bytes, 0))
        return log.read().decode(errors="replace")
