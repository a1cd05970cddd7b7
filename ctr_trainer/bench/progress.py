"""Shows how far a benchmark is, and about how long it still takes."""

import sys
import time

import tqdm

from ctr_trainer.messages.log_lines import format_seconds
from ctr_trainer.processes.hardware import usable_cores

# Of a run of a worker on a core: its start and 200 short steps, where nothing else runs.
_SECONDS = 12.0


class Progress:
    """Tells on stderr at the start about how long all runs take, and with each run what is left.

    At a terminal it redraws `deepfm 5 Gbit plain: 4/10 runs |###   | 01:10, about 2 min 30 s left`; elsewhere a run has
    a line. A run counts by its workers over the cores, so one of four workers on two cores counts as two of one worker.
    Until a run has ended, how long one takes is a guess; then it is the mean so far.

    Args:
      jobs: list of jobs, with `name` and `workers`.
      rounds: that each job is to run.
      cores: of this machine; None asks it.
      clock: f() -> seconds.
    """

    def __init__(self, jobs, rounds, cores=None, clock=time.monotonic):
        self._weights = {job.name: max(job.workers / (cores or usable_cores()), 1.0) for job in jobs}
        self._runs, self._number = rounds * len(jobs), 0
        self._left, self._done, self._spent = rounds * sum(self._weights.values()), 0.0, 0.0
        self._clock, self._draws = clock, sys.stderr.isatty()
        self._say(f"{self._runs} runs, about {format_seconds(self.seconds_left())} if nothing else runs here")
        self._bar = tqdm.tqdm(
            total=self._runs,
            bar_format="{desc}{n_fmt}/{total_fmt} runs |{bar:20}| {elapsed}{postfix}",
            disable=not self._draws,
        )
        self._show(0)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._bar.close()

    def seconds_left(self):
        """-> about how long all runs that have not ended take."""
        return self._left * (self._spent / self._done if self._done else _SECONDS)

    def begin(self, name):
        """Shows that a run of the job of this name begins."""
        self._number += 1
        self._began = self._clock()
        self._bar.set_description(name)
        if not self._draws:
            self._say(f"run {self._number} of {self._runs}, {name}; about {format_seconds(self.seconds_left())} left")

    def end(self, name):
        """Counts a run that has ended."""
        self._spent += self._clock() - self._began
        self._done += self._weights[name]
        self._count(name)

    def skip(self, name):
        """Counts a run that will not be."""
        self._number += 1
        self._count(name)

    def _count(self, name):
        self._left -= self._weights[name]
        self._show(1)

    def _show(self, ended):
        self._bar.set_postfix_str(f"about {format_seconds(self.seconds_left())} left", refresh=False)
        self._bar.update(ended)
        self._bar.refresh()

    def _say(self, text):
        print(text, file=sys.stderr, flush=True)
