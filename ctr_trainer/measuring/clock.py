"""The clock of a training: which phase its thread is in, and how long it has been in each."""

import time

from ctr_trainer.measuring.latency import Latency
from ctr_trainer.measuring.phases import PHASES

_BESIDE = tuple(name for name, phase in PHASES.items() if not phase.is_training)


class Clock:
    """The phase that the thread of the steps is in, and the seconds that it has spent in each.

    It is in exactly one at a time: entering one pauses the one around it. So the seconds of all phases add up to the
    time since this was made. All figures of where the time goes are views of it: rates, percentiles, the summary,
    traces, heartbeats and the phases of a step.

    Threads: one enters phases; others may read.

    Attributes:
      phase: name of the present one.
      began: when it was entered or gone back to, as of `time.perf_counter`.
      step: the global step that is under way.
      seconds: by phase, of its ended stretches.
      last: by phase, (began, ended) of its last ended stretch.
      latencies: list of `Latency`, percentiles of the stretches of each phase that has a log name.
      spans: list that gets each stretch that ends as (phase, began, ended); None for none to be kept.
      follow: f(phase, step), called at each change; None for nobody.
    """

    def __init__(self):
        self.phase, self.step = next(iter(PHASES)), 0
        self._made = self.began = time.perf_counter()
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.last = dict.fromkeys(PHASES, (self.began, self.began))
        self._latencies = {name: Latency(phase.log_name) for name, phase in PHASES.items() if phase.log_name}
        self.latencies = list(self._latencies.values())
        self.spans = self.follow = None

    def enter(self, phase):
        """Ends the present phase. -> which it was"""
        now, before, began = time.perf_counter(), self.phase, self.began
        self.seconds[before] += now - began
        self.last[before] = began, now
        if before in self._latencies:
            self._latencies[before].record(1e6 * (now - began))
        if self.spans is not None:
            self.spans.append((before, began, now))
        self.phase, self.began = phase, now
        if self.follow is not None:
            self.follow(phase, self.step)
        return before

    def within(self, phase):
        """-> context manager: its body is of this phase, and what comes after it of the one before."""
        return _Within(self, phase)

    def training_seconds(self):
        """-> seconds of training so far: since the first step began, without evaluations."""
        now = time.perf_counter()
        beside = sum(self.seconds[name] for name in _BESIDE) + (now - self.began) * (self.phase in _BESIDE)
        return now - self._made - beside

    def lasted(self):
        """-> seconds since the present phase was entered or gone back to."""
        return time.perf_counter() - self.began


def since_1970(at):
    """-> a time of the clock in seconds since 1970, by which TensorFlow traces."""
    return at + time.time() - time.perf_counter()


class _Within:
    """A class and no generator: it is entered several times a step."""

    __slots__ = ("_before", "_clock", "_phase")

    def __init__(self, clock, phase):
        self._clock, self._phase = clock, phase

    def __enter__(self):
        self._before = self._clock.enter(self._phase)

    def __exit__(self, *error):
        self._clock.enter(self._before)
