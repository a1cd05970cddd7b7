"""Has the ranks of a training stop after the same step."""

import threading

import numpy as np

_PERIOD_SECONDS = 1.0
_CLOSE_SECONDS = 1.0
_ASKED, _LEAVING, _BEGUN = range(3)  # Rows of what the ranks tell each other.


class Stopping:
    """Stops a training once one of its ranks was asked to: after the same step on all of them.

    A thread of each rank tells the others, about once a second and beside the steps, whether this rank was asked. Once
    they know of one, each rank begins no further step until all have told which step they have begun last. The latest
    of these is the last one: every rank can reach it, and none has gone beyond.

    A lone worker needs no thread.

    Args:
      rank, size: of this worker, and how many there are.
      all_sum: f(int64[3, size]) -> the sum of all ranks' arrays; called in the thread.
      watchdog: `Watchdog` of this process.
      period: seconds between two rounds.

    Attributes:
      explain: f() -> which ranks the others wait for, in brackets; "" if none is known.
      signal: number of the signal that the training stops for, once all ranks know; 0 until then.
      asked: the ranks that were asked by then.
    """

    def __init__(self, rank, size, all_sum, watchdog, period=_PERIOD_SECONDS):
        self._rank, self._size, self._all_sum, self._period = rank, size, all_sum, period
        self._waiting, self.explain = watchdog.waiting, watchdog.explanation
        self.signal, self.asked = 0, []
        self._own = np.zeros(3, np.int64)
        self._last = None
        # The thread of the steps asks too, in its handler of signals, wherever that finds it.
        self._lock, self._holds = threading.RLock(), False
        self._woken, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._agree, name="stopping", daemon=True)

    @property
    def is_asked(self):
        """Whether this rank knows that one was asked; all know within a round."""
        return self._holds

    def begin(self, step):
        """Begins: `step` is about to begin."""
        self._own[_BEGUN] = step
        if self._size > 1:
            self._thread.start()

    def ask(self, signal):
        """Asks all ranks to stop. From any thread; more than once is as once.

        Args:
          signal: number of the signal to stop for.
        """
        with self._lock:
            self._own[_ASKED] = signal
            if self._size == 1:
                self._conclude(np.array([signal]), self._own[_BEGUN])
        self._woken.set()

    def done(self, step):
        """-> whether the training stops after this step, which was just done; waits for the other ranks to say so."""
        with self._lock:
            if not self._holds:
                self._own[_BEGUN] = step + 1
                return False
        with self._waiting("the other ranks, to stop after the same step"):
            self._over.wait()
        return self._last is not None and step >= self._last

    def leave(self):
        """Ends: the training has ended in order. -> `signal`. A collective."""
        self._end()
        if self._size > 1:
            with self._waiting("the other ranks at the end of the training"):
                self._thread.join()
        return self.signal

    def close(self):
        """Ends, also after an error: what the other ranks have no part in any more is left alone after a second."""
        self._end()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _end(self):
        self._own[_LEAVING] = 1
        self._woken.set()

    def _agree(self):
        try:
            while True:
                if not self._own[_LEAVING]:
                    self._woken.wait(self._period)
                self._woken.clear()
                told = self._tell()
                if told[_ASKED].any():
                    break
                if told[_LEAVING].all():
                    return
            with self._lock:
                self._holds = True
            told = self._tell()
            self._conclude(told[_ASKED], told[_BEGUN].max())
        except Exception:  # Another rank has ended: the training thread meets the same error, and says so.
            pass
        finally:
            self._over.set()

    def _tell(self):
        """-> int64[3, size], what all ranks have told."""
        own = np.zeros((len(self._own), self._size), np.int64)
        own[:, self._rank] = self._own
        return self._all_sum(own)

    def _conclude(self, asked, last):
        self.asked = np.flatnonzero(asked).tolist()
        self.signal, self._last, self._holds = int(asked.max()), int(last), True
        self._over.set()
