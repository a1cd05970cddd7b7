"""Stops the ranks of a training after the same step."""

import threading
import time
from collections.abc import Callable

import numpy as np

from ctr_trainer.ranks.notices import Notices
from ctr_trainer.system.processes.waiting import Watchdog

_PERIOD_SECONDS, _SETTLE_SECONDS = 1.0, 0.7
# The maximum number of requests per second that all ranks together send to the server of the notices.
_ASKED_A_SECOND = 200
_CLOSE_SECONDS = 1.0
_ASKED, _BEGUN = range(2)  # Rows of the array that the ranks sum.


class Stopping:
    """Stops a training after the same step on all ranks, after one of them was asked to stop.

    While steps run, a thread of each rank checks about once a second for a notice that a rank was asked to stop. When
    it finds a notice, its rank begins no further step until all ranks have exchanged, in a collective, the last step
    that each has begun. The training ends after the latest of these steps, which every rank can reach and no rank has
    passed.

    The threads use notices, because a collective that runs concurrently with a step is dangerous: if a rank is killed
    during the collective, Gloo aborts the remaining ranks before they can report the lost rank.

    A single worker needs no thread.

    Args:
      name: name of the training, different for each training of this job.
      all_sum: f(int64[2, size]) -> the sum of all ranks' arrays; called once, by the thread or at the end.
      is_one_lost: f() -> whether a rank was lost, so that horovodrun ends the other ranks.

    Attributes:
      explain: f() -> the ranks that the others wait for, in parentheses; "" if none is known.
      signal: number of the signal that stops the training; 0 before all ranks know of the signal.
      asked: the ranks that had been asked to stop when all ranks learned of the signal.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        name: str,
        notices: Notices,
        all_sum: Callable[[np.ndarray], np.ndarray],
        watchdog: Watchdog,
        is_one_lost: Callable[[], bool],
        period: float = _PERIOD_SECONDS,
    ) -> None:
        self._rank, self._size, self._notices, self._all_sum = rank, size, notices, all_sum
        self._is_one_lost = is_one_lost
        self._period = max(period, size / _ASKED_A_SECOND)
        self._waiting, self.explain = watchdog.waiting, watchdog.explanation
        self._key = f"stopping/{name}"
        self.signal = 0
        self.asked: list[int] = []
        self._own = np.zeros(2, np.int64)
        self._last: int | None = None
        self._has_told = False
        # The lock is reentrant, because a signal handler may take it in the training thread while that thread holds it.
        self._lock, self._holds = threading.RLock(), False
        self._woken, self._leaving, self._over = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._agree, name="stopping", daemon=True)

    @property
    def is_asked(self) -> bool:
        """Whether this rank knows that a rank was asked to stop; all ranks know it within a second or two."""
        return self._holds

    def begin(self, step: int) -> None:
        """Starts the thread; `step` is the first step."""
        self._own[_BEGUN] = step
        if self._size > 1:
            self._thread.start()

    def ask(self, signal: int) -> None:
        """Asks all ranks to stop. It may be called from any thread and repeatedly."""
        with self._lock:
            self._own[_ASKED] = signal
            if self._size == 1:
                self._conclude(self._own[:, None])
        self._woken.set()

    def done(self, step: int) -> bool:
        """Returns whether the training stops after `step`, which was completed; may wait for the other ranks."""
        with self._lock:
            if not self._holds:
                self._own[_BEGUN] = step + 1
                return False
        with self._waiting("the other ranks, to stop after the same step"):
            self._over.wait()
        return self._last is not None and step >= self._last

    def leave(self) -> int:
        """Ends the thread after the training has ended in order; returns `signal`. A collective."""
        self._leaving.set()
        self._woken.set()
        if self._size > 1:
            with self._waiting("the other ranks at the end of the training"):
                self._thread.join()
            if not self._has_told:
                self._tell()
        return self.signal

    def close(self) -> None:
        """Ends the thread, even after an error; waits at most one second for the other ranks."""
        self._leaving.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _agree(self) -> None:
        try:
            while not self._is_asked_for():
                if self._leaving.is_set():
                    return
                self._woken.wait(self._period)
                self._woken.clear()
            with self._lock:
                self._holds = True
            time.sleep(min(_SETTLE_SECONDS, self._period))  # Wait until it is known whether a rank was lost.
            if not self._is_one_lost():
                if self._own[_ASKED]:
                    threading.Thread(target=self._repeat, name="stopping notice", daemon=True).start()
                self._tell()
        except Exception:  # If another rank has ended, the training thread gets the same error, and reports it.
            pass
        finally:
            self._over.set()

    def _is_asked_for(self) -> bool:
        """Whether this rank was asked to stop, or there is a notice that another rank was asked."""
        if self._own[_ASKED]:
            self._notices.put(self._key, str(self._rank))
            return True
        return self._notices.get(self._key) is not None

    def _repeat(self) -> None:
        """Repeats the notice until all ranks know it, because another program may remove it from the server."""
        while not self._over.wait(self._period):
            self._notices.put(self._key, str(self._rank))

    def _tell(self) -> None:
        """Exchanges the last begun step with the other ranks. A collective."""
        self._has_told = True
        own = np.zeros((len(self._own), self._size), np.int64)
        own[:, self._rank] = self._own
        told = self._all_sum(own)
        if told[_ASKED].any():
            self._conclude(told)

    def _conclude(self, told: np.ndarray) -> None:
        self.asked = np.flatnonzero(told[_ASKED]).tolist()
        self.signal, self._last, self._holds = int(told[_ASKED].max()), int(told[_BEGUN].max()), True
        self._over.set()
