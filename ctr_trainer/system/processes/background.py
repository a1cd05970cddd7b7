"""Functions that run in another thread: one task at a time in the background, and a call with a time limit."""

import threading
from collections.abc import Callable
from typing import TypeVar

from ctr_trainer.system.messages.errors import Lost
from ctr_trainer.system.processes import hardware

T = TypeVar("T")


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """Calls the function in a thread, and leaves the thread behind if the function takes longer than `seconds`.

    Args:
      seconds: longest time to wait.
      function: f(), which may hang because it reads a file or writes to a pipe.

    Returns:
      what the function returns.

    Raises:
      TimeoutError: the function takes longer than `seconds`.
      Exception: what the function raises.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def call() -> None:
        try:
            results.append(function())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} s, as of a file system that hangs")
    return results[0]


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
