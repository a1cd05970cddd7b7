"""What the training thread is doing, and how long it has done what."""

import time

# `start` is all before the first step; `hooks` is what no other phase is: logs, summaries, the loop itself.
PHASES = ("start", "read", "lookup", "session", "update", "sync", "dense_sync", "checkpoint", "evaluation", "hooks")


class Phases:
    """The phase that the training thread is in, and the seconds it has spent in each.

    It is in exactly one at a time: entering one pauses the one around it. So the seconds of all phases add up to the
    time since this was made.

    Threads: one enters phases; others may read.

    Attributes:
      phase: of `PHASES`, the present one.
      began: when it was entered or gone back to, as of `time.perf_counter`.
      step: the global step that is under way.
      seconds: by phase, of its ended stretches.
      spans: list that gets each stretch that ends as (phase, began, ended), in seconds of `time.perf_counter`; None for
        none to be kept.
      follow: f(phase, step), called at each change; None for nobody.
    """

    def __init__(self):
        self.phase, self.step = PHASES[0], 0
        self.began = time.perf_counter()
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.spans = self.follow = None

    def enter(self, phase):
        """Ends the present phase. -> which it was"""
        now, before = time.perf_counter(), self.phase
        self.seconds[before] += now - self.began
        if self.spans is not None:
            self.spans.append((before, self.began, now))
        self.phase, self.began = phase, now
        if self.follow is not None:
            self.follow(phase, self.step)
        return before

    def within(self, phase):
        """-> context manager: its body is of this phase, and what comes after it of the one before."""
        return _Within(self, phase)

    def timed(self, phase, function):
        """-> the function, all of it of this phase."""

        def call(*arguments):
            with self.within(phase):
                return function(*arguments)

        return call


class _Within:
    """A class and no generator: it is entered four times a step."""

    __slots__ = ("_before", "_phase", "_phases")

    def __init__(self, phases, phase):
        self._phases, self._phase = phases, phase

    def __enter__(self):
        self._before = self._phases.enter(self._phase)

    def __exit__(self, *error):
        self._phases.enter(self._before)
