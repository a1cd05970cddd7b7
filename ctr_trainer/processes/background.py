"""One task at a time beside the training thread."""

import threading

from ctr_trainer.messages.errors import UserError


class Background:
    """Runs a task in a thread; the next one waits for the one before.

    What a task raises comes out of the `wait` or `start` after it.

    Args:
      what: what the tasks do, as `the sync of the embedding rows`: for the thread's name and for the error.
      timeout: seconds to wait for a task's end.

    Raises:
      UserError: a task did not end in time.
    """

    def __init__(self, what, timeout=1800):
        self._what, self._timeout = what, timeout
        self._thread = None
        self._error = None

    def start(self, task):
        """Waits for the task before, then runs `task()` and returns at once."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(task,), name=self._what, daemon=True)
        self._thread.start()

    def wait(self):
        """Returns when no task runs; raises what the last one raised."""
        self.close()
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def is_busy(self):
        """Whether a task runs."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, timeout=None):
        """Returns when no task runs, whatever became of it.

        Args:
          timeout: seconds to wait for it; None for those of the constructor.
        """
        if self._thread is None:
            return
        seconds = self._timeout if timeout is None else timeout
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise UserError(f"{self._what} did not end within {seconds:g} s; is what it waits for stuck?")
        self._thread = None

    def _run(self, task):
        try:
            task()
        except BaseException as error:  # the waiting thread's to handle
            self._error = error
