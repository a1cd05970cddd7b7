"""Has the ranks of a training stop after the same step."""

import threading
import time

import numpy as np

_PERIOD_SECONDS, _SETTLE_SECONDS = 1.0, 0.7
# That many ranks ask the server of the notices in one second at most.
_ASKED_A_SECOND = 200
_CLOSE_SECONDS = 1.0
_ASKED, _BEGUN = range(2)  # Rows of what the ranks tell each other.


class Stopping:
    """Stops a training once one of its ranks was asked to: after the same step on all of them.

    A thread of each rank looks about once a second, beside the steps, for a notice that a rank was asked. Once it finds
    one, its rank begins no further step until all ranks have told, in a collective, which step they have begun last.
    The latest of these is the last one: every rank can reach it, and none has gone beyond.

    It looks for a notice, and asks in no collective: where a rank is killed, one that is under way beside the gradients
    of a step has Gloo abort the ranks that are left, before they can say which rank is lost.

    A lone worker needs no thread.

    Args:
      rank, size: of this worker, and how many there are.
      name: of the training, another one than those that this job had before.
      notices: `Notices` of the job.
      all_sum: f(int64[2, size]) -> the sum of all ranks' arrays; called once, by the thread or at the end.
      watchdog: `Watchdog` of this process.
      is_one_lost: f() -> whether a rank was lost, for which horovodrun ends the others.
      period: seconds between two looks.

    Attributes:
      explain: f() -> which ranks the others wait for, in brackets; "" if none is known.
      signal: number of the signal that the training stops for, once all ranks know; 0 until then.
      asked: the ranks that were asked by then.
    """

    def __init__(self, rank, size, name, notices, all_sum, watchdog, is_one_lost, period=_PERIOD_SECONDS):
        self._rank, self._size, self._notices, self._all_sum = rank, size, notices, all_sum
        self._is_one_lost = is_one_lost
        self._period = max(period, size / _ASKED_A_SECOND)
        self._waiting, self.explain = watchdog.waiting, watchdog.explanation
        self._key = f"stopping/{name}"
        self.signal, self.asked = 0, []
        self._own = np.zeros(2, np.int64)
        self._last, self._has_told = None, False
        # The thread of the steps asks too, in its handler of signals, wherever that finds it.
        self._lock, self._holds = threading.RLock(), False
        self._woken, self._leaving, self._over = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._agree, name="stopping", daemon=True)

    @property
    def is_asked(self):
        """Whether this rank knows that one was asked; all know within a second or two."""
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
                self._conclude(self._own[:, None])
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
        self._leaving.set()
        self._woken.set()
        if self._size > 1:
            with self._waiting("the other ranks at the end of the training"):
                self._thread.join()
            if not self._has_told:
                self._tell()
        return self.signal

    def close(self):
        """Ends, also after an error: what the other ranks have no part in any more is left alone after a second."""
        self._leaving.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _agree(self):
        try:
            while not self._is_asked_for():
                if self._leaving.is_set():
                    return
                self._woken.wait(self._period)
                self._woken.clear()
            with self._lock:
                self._holds = True
            time.sleep(min(_SETTLE_SECONDS, self._period))  # Until a loss is known, for which horovodrun asks.
            if not self._is_one_lost():
                if self._own[_ASKED]:
                    threading.Thread(target=self._repeat, name="stopping notice", daemon=True).start()
                self._tell()
        except Exception:  # Another rank has ended: the training thread meets the same error, and says so.
            pass
        finally:
            self._over.set()

    def _is_asked_for(self):
        """-> whether this rank was asked, or another one as far as it has given notice."""
        if self._own[_ASKED]:
            self._notices.put(self._key, str(self._rank))
            return True
        return self._notices.get(self._key) is not None

    def _repeat(self) -> None:
        """Gives the notice again until all ranks have told: another program may have removed it from the server."""
        while not self._over.wait(self._period):
            self._notices.put(self._key, str(self._rank))

    def _tell(self):
        """Tells the other ranks, waits for what they tell."""
        self._has_told = True
        own = np.zeros((len(self._own), self._size), np.int64)
        own[:, self._rank] = self._own
        told = self._all_sum(own)
        if told[_ASKED].any():
            self._conclude(told)

    def _conclude(self, told):
        self.asked = np.flatnonzero(told[_ASKED]).tolist()
        self.signal, self._last, self._holds = int(told[_ASKED].max()), int(told[_BEGUN].max()), True
        self._over.set()
