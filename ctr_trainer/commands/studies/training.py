"""Runs the training of a trial as `train` in a child process, and reads its evaluations while it runs."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from ctr_trainer.commands.reports.training_run import EVALUATIONS_FILE, Run, read_runs
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes.child import end_of_log, ended_with_parent, importing_environment

_POLL_SECONDS = 0.2
_LOG_BYTES = 4000


class TrialTraining:
    """The training process of a trial, and its files: `PLACE/NUMBER.flags`, `NUMBER.log` and the model directory.

    The process runs in its own session, so that a Ctrl-C in the terminal reaches only the search, and it ends with the
    search.
    """

    def __init__(self, place: pathlib.Path, number: int) -> None:
        self.model_dir, self._log = place / str(number), place / f"{number}.log"
        self._flagfile = place / f"{number}.flags"

    def run(self, flags: Sequence[str], metric: str, watch: Callable[[Run], bool]) -> bool:
        """Trains, and returns whether the training reached its end before `watch` returned True.

        `watch` is called every 0.2 s with the run so far. Raises UserError with the error of a training that failed or
        that never evaluated the metric, or if the directory is not a trial's.
        """
        self.remove()
        if self.model_dir.exists():
            raise UserError(
                f"{self.model_dir}: exists, but was not made by a search, because {self._flagfile.name} is not next to "
                "it: move it away, or choose another output"
            )
        LocalPath(self._flagfile).write_text("\n".join(flags) + "\n")
        with self._process() as process:
            while process.poll() is None:
                if watch(self.so_far()):
                    return False
                time.sleep(_POLL_SECONDS)
        if process.returncode:
            raise UserError(self._failure(process.returncode))
        watch(run := self.so_far())
        if not run.curve(metric):
            raise UserError(f"no evaluation has a number for {metric}; see {self._log}")
        return True

    def so_far(self) -> Run:
        """Returns what the training has written; before its first evaluation, a run without evaluations.

        The run has no summary, so that the last batch counts as full, also at the end.
        """
        if (self.model_dir / EVALUATIONS_FILE).exists():
            return dataclasses.replace(read_runs([str(self.model_dir)])[0], summary={})
        return Run(str(self.model_dir), training={}, evaluations=[], settings={}, summary={})

    def remove(self) -> None:
        """Removes the model directory of a trial, but not its flagfile and log.

        A trial first writes its flagfile, so a directory without one belongs to the user and is not removed.
        """
        if self._flagfile.exists():
            shutil.rmtree(self.model_dir, ignore_errors=True)

    @contextlib.contextmanager
    def _process(self) -> Iterator[subprocess.Popen[bytes]]:
        with open(self._log, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ctr_trainer", "train", f"--flagfile={self._flagfile}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PYTHONUNBUFFERED": "1", **importing_environment()},
                start_new_session=True,
                preexec_fn=ended_with_parent(),
            )
        try:
            yield process
        finally:
            if process.poll() is None:  # SIGKILL is safe, as the files of an unfinished training are not used.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _failure(self, status: int) -> str:
        if status < 0:
            name = signal.Signals(-status).name
            why = ", possibly because memory was exhausted" if name == "SIGKILL" else ""
            return f"the training was killed by {name}{why}; see {self._log}"
        lines = [line for line in end_of_log(self._log, _LOG_BYTES).splitlines() if line.strip()]
        return f"{lines[-1] if lines else 'the training wrote no log'} (status {status}; {self._log})"
