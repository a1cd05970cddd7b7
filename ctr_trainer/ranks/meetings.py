"""How a training is asked to stop: signals, the first of which makes it save, and steps after which all ranks meet."""

import contextlib
import ctypes
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType

import numpy as np

from ctr_trainer.system.processes.child import END_SIGNALS

# Signals within this time count as one request, because both a scheduler and horovodrun may forward the same request.
_SAME_SECONDS = 1.0
_LOOK_SECONDS, _CLOSING_SECONDS = 0.25, 3.0
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


def delay_abort() -> None:
    """Delays an abort of this process by 6 s, during which its other threads continue.

    If a rank is killed during an exchange, Gloo aborts other ranks, which have to report the killed rank first. The
    handler is `sleep` of the C library, because a handler in Python would run only after the abort. Its argument, the
    number of seconds, is the signal number, 6.
    """
    library = ctypes.CDLL(None)
    library.signal.argtypes, library.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))


class Terminated(KeyboardInterrupt):
    """Raised in the main thread on SIGTERM, like KeyboardInterrupt, so that files are closed and drafts removed."""


class StopSignals:
    """Handles SIGTERM and SIGINT (Ctrl-C) of this process.

    If a running training can stop in order, the first signal asks it to stop, and a second signal or the end of
    `grace_secs` ends the process. Otherwise, SIGTERM raises `Terminated` and SIGINT raises KeyboardInterrupt in the
    main thread. A process that still runs 3 s after a SIGTERM, because its main thread is in a collective, exits. After
    a training has stopped and is saved, a signal raises nothing, and the process has the same 3 s to close its files.

    Args:
      say: f(number, late), which reports why the process ends; `late` is "", or says that a training took too long.
      is_one_lost: f() -> whether a rank was killed. If so, horovodrun ends the other ranks, which cannot stop in order.
      is_ignored_after: whether SIGTERM is ignored after the block of `handled`.

    Attributes:
      has_failed: whether the work has failed and the process is closing its files; a signal then ends it immediately.
      is_saved: whether the training has stopped in order and is saved, and the process is closing its files.
      first: the first signal that was received; None for none.
    """

    def __init__(
        self, say: Callable[[int, str], None], is_one_lost: Callable[[], bool], is_ignored_after: bool
    ) -> None:
        self._say, self._is_one_lost, self._is_ignored_after = say, is_one_lost, is_ignored_after
        self._request: StopRequest | None = None
        self._grace_secs = self._since = 0.0
        self.first: int | None = None
        self._has_raised = self.has_failed = self.is_saved = False
        self._is_over = threading.Event()

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handles the signals within the block, even while the main thread waits."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # Python runs handlers in the main thread, which may be busy in TensorFlow. But it immediately writes the
        # signal's number to the pipe, which a thread reads.
        read, write = os.pipe()
        os.set_blocking(write, False)
        numbers = [number for number in END_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        handlers = {number: signal.signal(number, self._in_main_thread) for number in numbers}
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._read, args=[read], name="signals", daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            if self._is_ignored_after:
                handlers[signal.SIGTERM] = signal.SIG_IGN  # At once: between two handlers a signal would find neither.
            else:
                self._is_over.set()  # This process may continue, such as a notebook.
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.close(write)

    def hand_to(self, request: StopRequest, grace_secs: float) -> None:
        """Makes the first signal ask a training to stop; does nothing if `grace_secs` is 0."""
        if grace_secs:
            self._request, self._grace_secs = request, grace_secs

    def keep(self) -> None:
        """Makes signals end the process. Call it after the training is saved or has failed."""
        self._request = None

    def _in_main_thread(self, number: int, frame: FrameType | None) -> None:
        request = self._request
        if request is not None:
            request.ask(number)
        elif not (self.has_failed or self.is_saved or self._has_raised):
            self._has_raised = True
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    def _read(self, read: int) -> None:
        while number := os.read(read, 1):
            if number[0] in END_SIGNALS:
                self._came(number[0])
        os.close(read)

    def _came(self, number: int) -> None:
        now, request = time.monotonic(), self._request
        if self.first is not None:
            if now - self._since > _SAME_SECONDS:
                self._end(number, seconds=_CLOSING_SECONDS if self.is_saved else 0.0)
            return
        self.first, self._since = number, now
        if request is not None:
            request.ask(number)
            threading.Thread(target=self._end_late, args=[number, request], name="grace", daemon=True).start()
        elif self.has_failed:
            self._end(number)
        elif number == signal.SIGTERM or self.is_saved:
            threading.Thread(target=self._end, args=[number, "", _CLOSING_SECONDS], name="end", daemon=True).start()

    def _end_late(self, number: int, request: StopRequest) -> None:
        while (seconds := time.monotonic() - self._since) < self._grace_secs:
            if self._request is request and self._is_one_lost():
                self._end(number)
            if self._is_over.wait(min(_LOOK_SECONDS, self._grace_secs - seconds)):
                return
        self._end(number, f"the training did not end within grace_secs={self._grace_secs:g}")

    def _end(self, number: int, late: str = "", seconds: float = 0.0) -> None:
        try:
            self._say(number, late)
        finally:
            if not self._is_over.wait(seconds):
                os._exit(128 + number)


def name_of(number: int) -> str:
    """Returns the name of a signal for messages, such as `Ctrl-C`."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


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
