"""A job under `launch` that is disturbed: what is killed, when it trains again, and which rows it has read."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import psutil

from ctr_trainer.ranks.placement import ATTEMPT

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Has each worker note the names of the rows that it reads.
SITE = ROOT / "tests" / "hosts" / "site"
TIMEOUT_S = 900


class FaultyJob:
    """A running `launch`; leaving the block ends it.

    Args:
      arguments: list, what stands behind `launch`.
      model_dir: of the training.
      seen: directory for the names of the rows that each start reads; None to note none.
      batch_seconds: time that a worker waits before each batch, so that a job lasts for its faults.
      command: f(list) -> the command that runs the list on another machine; None for this one.
      environment: dict of more variables.
    """

    def __init__(self, arguments, model_dir, seen=None, batch_seconds=0.0, command=None, environment=None):
        self.model_dir, self._lines, self._changed = pathlib.Path(model_dir), [], threading.Condition()
        path = [str(SITE)] * bool(seen) + [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        more = {"ROWS_SEEN": str(seen), "BATCH_SECONDS": str(batch_seconds)} if seen else {}
        line = [sys.executable, "-m", "ctr_trainer", "launch", *map(str, arguments)]
        self.process = subprocess.Popen(
            command(line) if command else line,
            env={**os.environ, **(environment or {}), **more, "PYTHONPATH": os.pathsep.join(path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, text, times=1, seconds=TIMEOUT_S):
        """Waits for a text in the job's output. -> when it came for the `times`-th time, in seconds since 1970

        Raises:
          RuntimeError: the job ended before.
          TimeoutError: it did not come in time.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(found := [at for at, line in self._lines if text in line]) < times:
                if self._lines and self._lines[-1][1] is _END:
                    raise RuntimeError(f"the job ended before {text!r} came:\n{self.tail()}")
                if not self._changed.wait(max(deadline - time.monotonic(), 0.0)):
                    raise TimeoutError(f"{text!r} did not come within {seconds} s:\n{self.tail()}")
        return found[times - 1]

    def count(self, text):
        """-> in how many lines of the output a text stands."""
        return sum(text in line for _, line in list(self._lines))

    def tail(self, lines=30):
        """-> the end of the output."""
        return "\n".join(line for _, line in list(self._lines)[-lines:])

    def worker(self, rank):
        """-> the process of a rank that trains; None if there is none."""
        held = []
        for process in self._processes("ctr_trainer.launch.worker"):
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                if environment.get("HOROVOD_RANK") == str(rank):
                    held.append((int(environment[ATTEMPT].partition(".")[2]), process))
        return min(held, default=(0, None), key=lambda each: each[0])[1]

    def services(self):
        """-> the processes of its local services."""
        return self._processes("ctr_trainer", "serve")

    def left(self):
        """-> the processes that it has started, and that are there."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _processes(self, *module):
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[2 : 2 + len(module)] == [*module] and self._is_ours(process):
                    found.append(process)
        return found

    def _is_ours(self, process):
        with contextlib.suppress(psutil.Error, OSError):
            return ATTEMPT in process.environ() and str(self.model_dir) in " ".join(process.cmdline())
        return False

    def finish(self, seconds=TIMEOUT_S):
        """Waits for the end. -> the exit status"""
        return self.process.wait(seconds)

    def summary(self):
        """-> what the training left at its end."""
        return json.loads((self.model_dir / "train_summary.json").read_text())

    def _read(self):
        for line in self.process.stdout:
            self._add(line.rstrip("\n"))
        self._add(_END)

    def _add(self, line):
        with self._changed:
            self._lines.append((time.time(), line))
            self._changed.notify_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        for process in [self.process, *self.left()]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()


_END = "(the end of the output)"
