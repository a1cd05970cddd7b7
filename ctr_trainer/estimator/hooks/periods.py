"""Periods, which determine when a checkpoint or an evaluation is due: after the same step on all ranks."""

import sys
import time
from collections.abc import Callable

import numpy as np

from ctr_trainer.graph_notes.run_length import RunLength
from ctr_trainer.system.messages.errors import UserError

# The share of a period that counts as little, and the largest ratio of predicted steps to measured steps.
_LITTLE, _MOST_TIMES = 0.15, 4


class EverySteps:
    """Due after every step whose number, plus `offset`, is a multiple of n.

    Args:
      steps: n; 0 for never.
      offset: see above.
    """

    def __init__(self, steps: int, offset: int = 0) -> None:
        self._steps, self._offset = steps, offset

    def is_due(self, step: int) -> bool:
        """Returns whether to act after `step`. Must be called after each step, on all ranks."""
        return bool(self._steps) and (step + self._offset) % self._steps == 0

    def begin(self) -> None:
        """Starts the period. Called when training begins, and after an action."""


class EveryEpochs(EverySteps):
    """Due after each step that completes an n-th epoch of the data, counted from the first epoch of the first run.

    Args:
      epochs: n, at least 1.
      length: determines when the epochs of the run end.
      flags: the names of the settings (epochs, steps) for the error message.

    Raises:
      UserError: the number of batches per epoch is not known.
    """

    def __init__(self, epochs: int, length: RunLength, flags: tuple[str, str]) -> None:
        if length.epochs is None:
            raise UserError(
                f"{flags[0]}={epochs}: the input does not say how many batches an epoch has, as a tf.data.Dataset: "
                f"count in steps, {flags[1]}"
            )
        self._epochs, self._length = epochs, length

    def is_due(self, step: int) -> bool:
        before, after = (self._length.epochs_done(at) for at in (step - 1, step))
        return after // self._epochs > before // self._epochs


class EverySeconds(EverySteps):
    """Due after the first step that ends at least `seconds` after the period started. For one worker.

    Args:
      seconds: above 0.
      clock: f() -> seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._since = clock()

    def is_due(self, step: int) -> bool:
        return self._clock() - self._since >= self._seconds

    def begin(self) -> None:
        self._since = self._clock()


class EventClock:
    """A clock of event time, which returns the seconds from the first event of a run to its newest event.

    Args:
      event_seconds: f() -> the newest event time, in seconds since 1970; 0 before the first event. None on the ranks
        that do not know it, where the clock returns 0.
    """

    def __init__(self, event_seconds: Callable[[], float] | None) -> None:
        self._event_seconds, self._first = event_seconds, 0.0

    def __call__(self) -> float:
        now = self._event_seconds() if self._event_seconds is not None else 0.0
        self._first = self._first or now
        return now - self._first


class EveryStepsOrSeconds(EverySteps):
    """Due after every n-th step, and after the first step that ends at least `seconds` after the previous action.

    Only for actions that need not happen after the same step on all ranks, because each worker uses its own clock.

    Args:
      steps, offset: see `EverySteps`.
      seconds: above 0.
      clock: f() -> seconds.
    """

    def __init__(self, steps: int, offset: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(steps, offset)
        self._elapsed = EverySeconds(seconds, clock)

    def is_due(self, step: int) -> bool:
        return super().is_due(step) or self._elapsed.is_due(step)

    def begin(self) -> None:
        self._elapsed.begin()


class ThrottledCheckpoints(EverySteps):
    """Due with each checkpoint, but not earlier than `throttle_secs` after the previous time, by the clock of rank 0.

    It costs one collective per checkpoint.

    Args:
      checkpoints: the period of the checkpoints, an `EverySteps`.
      throttle_secs: minimum seconds between two times.
      start_delay_secs: minimum seconds until the first time.
      is_chief: whether this is rank 0.
      all_sum: f(int64[1]) -> the sum of all ranks' arrays.
      clock: f() -> seconds.
    """

    def __init__(
        self,
        checkpoints: EverySteps,
        throttle_secs: float,
        start_delay_secs: float,
        is_chief: bool,
        all_sum: Callable[[np.ndarray], np.ndarray],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpoints, self._throttle_secs, self._start_delay_secs = checkpoints, throttle_secs, start_delay_secs
        self._is_chief, self._all_sum, self._clock = is_chief, all_sum, clock
        self._from: float | None = None

    def is_due(self, step: int) -> bool:
        if not self._checkpoints.is_due(step):
            return False
        self._checkpoints.begin()
        decided = self._is_chief and (self._from is None or self._clock() >= self._from)
        if not self._all_sum(np.array([decided], np.int64))[0]:
            return False
        self._from = self._clock() + self._throttle_secs
        return True

    def begin(self) -> None:
        self._checkpoints.begin()
        if self._from is None:
            self._from = self._clock() + self._start_delay_secs


class SecondsOfChief(EverySeconds):
    """The period of `EverySeconds` for several workers: by the clock of rank 0, after the same step on all ranks.

    Between two steps, rank 0 predicts how many steps the rest of the period will take at the current pace. All ranks
    meet again after half of these steps. When little of the period is left, all ranks act after the remaining steps. So
    they meet three or four times in a period, and no collective runs while a step runs.

    Caveat: if steps become slower after a prediction, all ranks act later accordingly, unless `longest_step_secs` is
    given.

    Args:
      seconds, clock: see `EverySeconds`.
      is_chief: whether this is rank 0.
      all_sum: f(int64[2]) -> the sum of all ranks' arrays.
      longest_step_secs: maximum seconds of a step, regardless of the previous steps, as on a stream that falls quiet.
        Rank 0 then predicts only as many steps as fit into the rest of the period if each of them takes that long. 0 if
        the pace is steady.
    """

    def __init__(
        self,
        seconds: float,
        is_chief: bool,
        all_sum: Callable[[np.ndarray], np.ndarray],
        clock: Callable[[], float] = time.monotonic,
        longest_step_secs: float = 0.0,
    ) -> None:
        super().__init__(seconds, clock)
        self._is_chief, self._all_sum, self._longest_step_secs = is_chief, all_sum, longest_step_secs
        self._next, self._then = 0, 0
        self._first: int | None = None  # The step after which the ranks first met.
        self._pace_from: tuple[int, float] | None = None  # (step, time) from which on the pace is measured.

    def is_due(self, step: int) -> bool:
        if step < self._next:
            return False
        if not self._then:
            told = self._tell(step) if self._is_chief else (0, 0)
            steps, self._then = map(int, self._all_sum(np.array(told, np.int64)))
            self._next = step + steps
            if steps:
                return False
        self._next, self._then, self._pace_from = step + self._then, 0, (step, self._clock())
        return True

    def begin(self) -> None:
        """Starts the period. The pace does not include the time of the action."""
        super().begin()
        if self._pace_from:
            self._pace_from = self._pace_from[0], self._since

    def _tell(self, step: int) -> tuple[int, int]:
        """Returns the number of steps until all ranks act or meet, and from the action until they meet.

        The second number is 0 if the ranks do not act.
        """
        now, (before, since) = self._clock(), self._pace_from or (step, 0.0)
        self._pace_from = step, now
        self._first = step if self._first is None else self._first
        if step == before:
            return 1, 0  # The pace is not known yet.
        pace, most = (step - before) / max(now - since, 1e-9), _MOST_TIMES * (step - self._first)
        left = max(self._seconds - (now - self._since), 0.0)
        if left <= _LITTLE * self._seconds or left * pace < 1:
            steps = min(round(left * pace), most)
            if steps <= self._sure(left):
                return steps, min(_half(self._seconds * pace, most), self._sure(self._seconds))
        return min(_half(left * pace, most), self._sure(left)), 0

    def _sure(self, seconds: float) -> int:
        """Returns the number of steps that fit into `seconds` at any pace, at least 1."""
        return max(int(seconds / self._longest_step_secs), 1) if self._longest_step_secs else sys.maxsize


def _half(steps: float, most: int) -> int:
    return min(max(int(steps / 2), 1), most)
