"""Reads ahead in a background thread."""

import contextlib
import queue
import threading
import time

from ctr_trainer.messages.errors import UserError

_END = object()


class ReadAhead:
    """Iterates over `iterable` in a background thread, at most `depth` items ahead of the consumer.

    An exception of the iterable is raised, with its traceback, where the consumer would have got the item. A consumer
    that leaves the loop early calls `close()`, or uses this as a context manager.

    Args:
      iterable: any iterable. A generator is closed in the thread that ran it.
      depth: number of items that may wait; one more may be being made. 0 uses no thread.
      name: what the consumer waits for, as `reading /data/train`; part of the thread's name and of the error.
      timeout: seconds to wait for an item, and for the end of the thread.

    Raises:
      UserError: no item came within `timeout`, or the thread did not end within `timeout` of `close()`.
    """

    def __init__(self, iterable, depth, name="prefetching", timeout=1800):
        self._depth, self._name, self._timeout = depth, name, timeout
        self._iterator = iter(iterable)
        self._done = False
        if depth:
            self._queue = queue.Queue(depth)
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __iter__(self):
        return self

    def __next__(self):
        if self._done:
            raise StopIteration
        if not self._depth:
            return next(self._iterator)
        try:
            item, error = self._queue.get(timeout=self._timeout)
        except queue.Empty:
            message = f"{self._name}: nothing came for {self._timeout} s; is the disk or the network stuck?"
            raise UserError(message) from None
        if error is not None or item is _END:
            self._done = True
            self._thread.join()
            raise error if error is not None else StopIteration
        return item

    def close(self):
        """Stops the thread after its present item. Further iteration ends at once."""
        self._done = True
        if not self._depth:
            _close(self._iterator)
            return
        self._stop.set()
        deadline = time.monotonic() + self._timeout
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):  # Taking an item makes room, so that a waiting `put` returns.
                self._queue.get_nowait()
            self._thread.join(0.02)
            if time.monotonic() > deadline:
                raise UserError(f"{self._name}: the item in the making did not end within {self._timeout} s")

    def _work(self):
        last = (_END, None)
        try:
            for item in self._iterator:
                self._queue.put((item, None))
                if self._stop.is_set():
                    break
        except BaseException as error:  # Raised again in the consumer.
            last = (None, error)
        finally:
            _close(self._iterator)
        if not self._stop.is_set():
            self._queue.put(last)


def _close(iterator):
    if hasattr(iterator, "close"):
        iterator.close()
