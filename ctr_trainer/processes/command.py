"""Runs a command to its end."""

import os
import signal
import subprocess
import threading

from ctr_trainer.messages.errors import UserError

_GRACE_SECONDS = 15
_SHOWN_LINES = 30


def run(command, what, timeout_s, *, env=None, cwd=None, show=None, merge_stderr=False):
    """Runs a command and waits for its end, at most `timeout_s` seconds.

    Args:
      command: list of the program and its arguments: strings, numbers, paths.
      what: what the command does, for the messages, as `building Horovod`.
      timeout_s: seconds after which the command, and all processes that it started, are stopped.
      env: dict, the whole environment of the command; None for this process's environment.
      cwd: directory in which the command runs; None for the current one.
      show: f(line), called with each line of stdout as it comes, without the newline; None shows nothing.
      merge_stderr: whether the command's stderr joins its stdout; if not, it joins this process's stderr.

    Returns:
      list of the lines of stdout.

    Raises:
      UserError: the command cannot be started, fails, or takes longer; with its last lines, unless they were shown.
    """
    command = [str(part) for part in command]
    try:
        # The command has a session of its own, so that a stop reaches the compilers and workers that it started.
        process = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge_stderr else None,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"{what}: cannot start {command[0]}: {error}") from error
    lines = []

    def read():
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if show is not None:
                show(lines[-1])

    # A thread reads the pipe during the wait: a process that the command left running may hold the pipe open for ever.
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
        _stop(process)
    reader.join(_GRACE_SECONDS)
    if problem:
        last = "" if show else "".join(f"\n  {line}" for line in lines[-_SHOWN_LINES:])
        raise UserError(f"{what} {problem}: {' '.join(command)}{last}")
    return lines


def _stop(process):
    """Ends the process and its group, if it runs: first by a signal that lets horovodrun end its workers."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
