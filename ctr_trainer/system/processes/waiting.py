"""Waits with time limits: functions in other threads, and a watchdog that reports what a process waits for."""

import concurrent.futures
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from ctr_trainer.system.messages import errors
from ctr_trainer.system.messages.errors import Lost
from ctr_trainer.system.processes import hardware

_log = logging.getLogger(__name__)
_HOPELESS_SECONDS, _MOST_SELDOM_SECONDS, _TELL_SECONDS = 1.0, 30.0, 30.0
_EXPLAIN_SECONDS, _WARN_SECONDS, _END_SECONDS = 3.0, 4.0, 10.0
T = TypeVar("T")


class Watchdog:
    """Ends this process, without cleaning up, when one of its waits takes longer than `timeout`.

    Python cannot interrupt a collective that another rank does not reach. The watchdog's thread never blocks: helper
    threads read files for explanations and write messages to pipes, and it waits only a few seconds for them.

    Args:
      who: name of the process for messages, such as `rank 0`.
      timeout: longest wait, in seconds. Also an attribute.
      warning: seconds after which the log reports a wait, and again each time the wait has doubled; 0 for never.
      speak: f(sentence), called before the process is ended; None to log the sentence.
      ends: f() -> whether a wait longer than `timeout` ends the process. Otherwise only `hopeless` does.

    Attributes:
      explain: f() -> a description of the ranks that the process waits for; or None instead of a function.
      hopeless: f() -> the error because of which the wait will never end, or None; or None instead of a function.
      tell_seconds: seconds between two progress messages of a rank for which the others wait.
    """

    def __init__(
        self,
        who: str,
        timeout: float,
        period: float = 1.0,
        warning: float = 0.0,
        speak: Callable[[str], object] | None = None,
        ends: Callable[[], bool] = lambda: True,
    ) -> None:
        self._who, self.timeout, self._period, self._warning = who, timeout, period, warning
        self._speak, self._ends = speak or _log.error, ends
        self._waits: dict[object, tuple[float, str]] = {}
        self._next_warning = warning
        self.explain: Callable[[], str] | None = None
        self.hopeless: Callable[[], BaseException | None] | None = None
        self._asked_at = 0.0
        self._closed = threading.Event()
        self.tell_seconds = min(_TELL_SECONDS, timeout / 4)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Monitors the block; `what` describes the wait in messages."""
        token = object()
        self._waits[token] = (time.monotonic(), what)
        try:
            yield
        finally:
            del self._waits[token]

    def progress(self) -> None:
        """Restarts the timers of all current waits, because the work that they wait for continues."""
        for token, (_, what) in list(self._waits.items()):
            self._waits[token] = (time.monotonic(), what)

    def _watch(self) -> None:
        while not self._closed.wait(self._period):
            self._look()

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()

    def explanation(self) -> str:
        """Returns the result of `explain` in parentheses; "" if there is none."""
        if self.explain is None:
            return ""
        try:
            text = call_within(_EXPLAIN_SECONDS, self.explain)
        except Exception as error:  # An error in the explanation must not keep the process alive.
            text = f"which ranks are missing is not known: {error}"
        return f" ({text})" if text else ""

    def _look(self) -> None:
        waits = list(self._waits.values())
        if not waits:
            self._next_warning = self._warning
            return
        # The outer wait has taken longer, and the inner wait is more specific, so the message names both.
        seconds, what = time.monotonic() - waits[0][0], " > ".join(dict.fromkeys(what for _, what in waits))
        if seconds > self.timeout and self._ends():
            self._end(
                lambda: (
                    f"{self._who} has waited {seconds:.0f} s for {what}, longer than stall_timeout={self.timeout:g}: "
                    f"another rank hangs or is too slow{self.explanation()}"
                )
            )
        if seconds < self._asked_at:
            self._asked_at = 0.0  # This is not the wait of the last check.
        # All waiting ranks send requests to one server, so the longer the wait takes, the less often they do.
        asked_again = self._asked_at + min(self._asked_at, _MOST_SELDOM_SECONDS)
        if self.hopeless is not None and seconds >= max(_HOPELESS_SECONDS, asked_again):
            self._asked_at = seconds
            with contextlib.suppress(Exception):  # If `hopeless` fails, the wait may still end.
                if error := call_within(_EXPLAIN_SECONDS, self.hopeless):
                    self._end(lambda: str(error), errors.status_of(error))
        if seconds < self._warning:
            self._next_warning = self._warning
        elif self._warning and seconds >= self._next_warning:
            self._next_warning = 2 * seconds
            # A failed warning must not end the thread.
            with contextlib.suppress(Exception):
                call_within(_WARN_SECONDS, lambda: self._warn(seconds, what))

    def _warn(self, seconds: float, what: str) -> None:
        _log.warning("%s has waited %.0f s for %s%s", self._who, seconds, what, self.explanation())

    def _end(self, sentence: Callable[[], str], status: int = errors.LOST) -> None:
        def speak() -> None:
            self._speak(sentence())
            logging.shutdown()

        try:
            call_within(_END_SECONDS, speak)
        finally:
            os._exit(status)


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """Calls, in a thread, a function that may hang because of a file, a pipe or another host.

    Returns the function's result, or raises its exception. If the function takes longer than `seconds`, raises
    TimeoutError, while the thread continues.
    """
    answer = in_thread(function)
    concurrent.futures.wait([answer], seconds)
    if not answer.done():
        raise TimeoutError(f"no answer within {seconds:g} s, as of a file system or a host that hangs")
    return answer.result()


def in_thread(function: Callable[[], T], name: str | None = None) -> concurrent.futures.Future[T]:
    """Calls a function in a thread that ends with the process, unlike a thread of a `ThreadPoolExecutor`."""
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()

    def call() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    return answer


class Background:
    """Runs tasks in the background, one after another: a task starts when the previous task has ended.

    The next `wait` or `start` raises the exception of a task.

    Args:
      what: description of the tasks, such as `the sync of the embedding rows`, for the thread's name and for errors.
      timeout: seconds to wait for a task's end.
      cores: cores that the tasks run on; None for all cores of this process.

    Raises Lost: a task did not end within `timeout`.
    """

    def __init__(self, what: str, timeout: float = 1800, cores: set[int] | None = None) -> None:
        self._what, self._timeout, self._cores = what, timeout, cores
        self._task: concurrent.futures.Future[None] | None = None

    def start(self, task: Callable[[], object]) -> None:
        """Waits for the end of the previous task, then starts `task()` and returns immediately."""
        self.wait()

        def run() -> None:
            hardware.run_on(self._cores)
            task()

        self._task = in_thread(run, self._what)

    def wait(self) -> None:
        """Waits until no task runs. Raises the exception of the last task, if it failed."""
        self.close()
        task, self._task = self._task, None
        if task is not None:
            task.result()

    @property
    def is_busy(self) -> bool:
        """Whether a task is running. Any thread may ask."""
        task = self._task
        return task is not None and not task.done()

    def close(self, timeout: float | None = None) -> None:
        """Waits until no task runs, at most `timeout` seconds if given, without raising the task's exception."""
        if self._task is not None:
            seconds = self._timeout if timeout is None else timeout
            concurrent.futures.wait([self._task], seconds)
            if not self._task.done():
                raise Lost(f"{self._what} did not end within {seconds:g} s; is the disk, the network or a rank stuck?")
