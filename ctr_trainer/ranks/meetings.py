"""Steps after which all ranks meet, to do after the same step what a clock or a signal of one rank asks for."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

_SECONDS = 1.0
_MOST_TIMES = 2


class StopRequest:
    """A request to stop a training, which a signal handler makes, and which the training reads between two steps.

    `asked`: number of the signal that asks this rank to stop; 0 for none.
    """

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, signal: int) -> None:
        """Asks to stop. It may be called from any thread and repeatedly; the first signal counts."""
        self.asked = self.asked or signal


@dataclasses.dataclass(frozen=True)
class Told:
    """What all ranks know after a meeting.

    Attributes:
      signals: the number of the signal that asks each rank to stop, 0 for none, by rank.
      is_over: whether the period of rank 0 is over.
    """

    signals: tuple[int, ...] = ()
    is_over: bool = False

    @property
    def signal(self) -> int:
        """Number of the signal that stops the training; 0 for none."""
        return max(self.signals, default=0)


NOTHING = Told()


class Meetings:
    """Lets the ranks meet about once a second, after the same step, in one small sum between two steps.

    At each meeting, rank 0 chooses the step of the next one from the pace of the steps since the previous one. The
    number of steps between two meetings at most doubles, so the first ones, which are slow, do not count for long. A
    single rank meets itself after each step.

    Args:
      all_sum: f(int64[size + 2]) -> the sum of all ranks' arrays. A collective.
      most_steps: largest number of steps between two meetings, if steps may suddenly take seconds; None for no limit.
      waiting: f() -> context manager of a meeting of several ranks, such as a phase of the clock.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        all_sum: Callable[[np.ndarray], np.ndarray],
        most_steps: int | None = None,
        waiting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank, self._size, self._all_sum, self._most_steps = rank, size, all_sum, most_steps
        self._waiting, self._clock = waiting, clock
        self._last: tuple[int, float] | None = None  # The step of the last meeting, and its time.
        self._next, self._steps = 0, 1

    def after_step(self, step: int, signal: int, is_over: bool) -> Told:
        """Returns what the ranks ask for if they meet after `step`, otherwise `NOTHING`. A collective if they meet.

        Args:
          signal: the signal that asks this rank to stop; 0 for none.
          is_over: whether the period of rank 0 is over; ignored on other ranks.
        """
        return NOTHING if step < self._next else self.meet(step, signal, is_over)

    def meet(self, step: int, signal: int, is_over: bool) -> Told:
        """Returns what the ranks ask for. A collective."""
        if self._size == 1:
            return Told((signal,), is_over)
        own = np.zeros(self._size + 2, np.int64)
        own[self._rank] = signal
        if self._rank == 0:
            now, (before, since) = self._clock(), self._last or (step, 0.0)
            self._last = step, now
            pace = (step - before) / max(now - since, 1e-9)
            steps = min(max(round(_SECONDS * pace), 1), _MOST_TIMES * self._steps)
            own[-2:] = is_over, min(steps, self._most_steps or steps)
        with self._waiting():
            told = self._all_sum(own)
        self._steps = int(told[-1])
        self._next = step + self._steps
        return Told(tuple(told[:-2].tolist()), bool(told[-2]))
