"""Waits with a limit: functions in other threads, and a watchdog that says what a process waits for."""

import concurrent.futures
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from ctr_trainer.system.messages import errors
from ctr_trainer.system.messages.errors import Lost, end_of
from ctr_trainer.system.processes import hardware

_log = logging.getLogger(__name__)
_HOPELESS_SECONDS, _MOST_SELDOM_SECONDS, _TELL_SECONDS = 1.0, 30.0, 30.0
_EXPLAIN_SECONDS, _WARN_SECONDS, _END_SECONDS = 3.0, 4.0, 10.0
T = TypeVar("T")


class Watchdog:
    """Ends this process when one of its waits takes longer than `timeout`.

    Python cannot interrupt a collective that another rank does not reach. So the process ends at once and cleans
    nothing up. `horovodrun` then ends the other ranks, and the next start resumes from the last checkpoint.

    The thread that watches does nothing that may hang. Explanations read files, and messages go to pipes, so helper
    threads do both, and the watching thread waits only a few seconds for them.

    Args:
      who: name of the process for messages, such as `rank 0`.
      timeout: longest wait, in seconds. It is also an attribute.
      warning: seconds after which the log names a wait, and names it again each time that the wait has doubled; 0 for
        never.
      speak: f(sentence), called before the process is ended; None logs the sentence.

    Attributes:
      explain: f() -> str, what is known about the ranks that the process waits for; None if nothing can be known.
      hopeless: f() -> the error for which the wait will never end, such as `Lost`, whose exit status the process
        then has; None if the wait may end. None in its place if nothing can be known.
      tell_seconds: seconds between two signs of life of a rank that works while the others wait for it.
    """

    def __init__(
        self,
        who: str,
        timeout: float,
        period: float = 1.0,
        warning: float = 0.0,
        speak: Callable[[str], object] | None = None,
    ) -> None:
        self._who, self.timeout, self._period, self._warning = who, timeout, period, warning
        self._speak = speak or _log.error
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
        """Watches the body of the `with`."""
        token = object()
        self._waits[token] = (time.monotonic(), what)
        try:
            yield
        finally:
            del self._waits[token]

    def progress(self) -> None:
        """Restarts the time of all current waits, because the work that they wait for continues."""
        for token, (_, what) in list(self._waits.items()):
            self._waits[token] = (time.monotonic(), what)

    def _watch(self) -> None:
        while not self._closed.wait(self._period):
            self._look()

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()

    def explanation(self) -> str:
        """Returns what is known about the ranks that the others wait for, in brackets; "" for nothing."""
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
        # The outer wait has taken longer, and the wait inside it says more, so the message names both.
        seconds, what = time.monotonic() - waits[0][0], " > ".join(dict.fromkeys(what for _, what in waits))
        if seconds > self.timeout:
            self._end(
                lambda: (
                    f"{self._who} has waited {seconds:.0f} s for {what}, longer than stall_timeout={self.timeout:g}: "
                    f"another rank hangs or is too slow{self.explanation()}"
                )
            )
        if seconds < self._asked_at:
            self._asked_at = 0.0  # This is another wait than at the last check.
        # All ranks that wait ask one server, so they ask less often the longer the wait takes.
        asked_again = self._asked_at + min(self._asked_at, _MOST_SELDOM_SECONDS)
        if self.hopeless is not None and seconds >= max(_HOPELESS_SECONDS, asked_again):
            self._asked_at = seconds
            with contextlib.suppress(Exception):  # If `hopeless` fails, nothing is known.
                if error := call_within(_EXPLAIN_SECONDS, self.hopeless):
                    self._end(lambda: str(error), end_of(error).status)
        if seconds < self._warning:
            self._next_warning = self._warning
        elif self._warning and seconds >= self._next_warning:
            self._next_warning = 2 * seconds
            # A warning that cannot be given must not end the watch.
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
    """Calls a function that may hang, because it reads a file or writes to a pipe, in a thread.

    Returns what the function returns, and raises what it raises. If it takes longer than `seconds`, leaves the thread
    behind and raises TimeoutError.
    """
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()

    def call() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    concurrent.futures.wait([answer], seconds)
    if not answer.done():
        raise TimeoutError(f"no answer within {seconds:g} s, as of a file system that hangs")
    return answer.result()


class Background:
    """Runs tasks in a thread, one at a time: a task starts when the previous one has ended.

    An exception of a task is raised by the next `wait` or `start`.

    Args:
      what: what the tasks do, such as `the sync of the embedding rows`; the name of the thread, and part of the error.
      timeout: seconds to wait for a task's end.
      cores: set of the cores that the tasks run on; None for all that this process may use.

    Raises:
      Lost: a task did not end within `timeout`.
    """

    def __init__(self, what: str, timeout: float = 1800, cores: set[int] | None = None) -> None:
        self._what, self._timeout, self._cores = what, timeout, cores
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, task: Callable[[], object]) -> None:
        """Waits for the end of the previous task, then starts `task()` and returns at once."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(task,), name=self._what, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until no task runs. Raises the exception of the last task, if it raised one."""
        self.close()
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def is_busy(self) -> bool:
        """Whether a task runs."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, timeout: float | None = None) -> None:
        """Waits until no task runs, without raising the task's exception.

        Args:
          timeout: seconds to wait; None for the `timeout` of the constructor.
        """
        if self._thread is None:
            return
        seconds = self._timeout if timeout is None else timeout
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise Lost(f"{self._what} did not end within {seconds:g} s; is the disk, the network or a rank stuck?")
        self._thread = None

    def _run(self, task: Callable[[], object]) -> None:
        hardware.run_on(self._cores)
        try:
            task()
        except BaseException as error:  # Raised again in the thread that waits.
            self._error = error
