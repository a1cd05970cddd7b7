"""Work shared out to several background threads, whose results keep their order."""

import threading

from ctr_trainer.messages.errors import UserError

_END = object()


class OrderedMap:
    """Iterates over `worker(item)` of each item, in the items' order, made ahead by one thread for each worker.

    A free thread takes the next item. Of K workers' results at most K + 1 are waiting or in the making.

    An exception of a worker, or of the items, is raised where the consumer would have got the result, with its own
    traceback. Leaving the loop early? Call `close()`, or use it as a context manager.

    Args:
      workers: list of f(item), each called in a thread of its own, where its `close()` is called at the end.
      items: iterable, without an end if need be; one thread at a time goes on in it.
      name: what the consumer waits for, as `reading /data/train`: the threads' name, and part of the error.
      timeout: seconds to wait for a result, and for each thread's end.

    Raises:
      UserError: no result came within `timeout`, or a thread did not end within it when closed.
    """

    def __init__(self, workers, items, name="mapping", timeout=1800):
        self._items, self._name, self._timeout = iter(items), name, timeout
        self._changed = threading.Condition()  # Of all below.
        self._results = {}
        self._begun = self._taken = 0
        self._most = len(workers) + 1
        self._ended = False  # No further item is begun.
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=name, daemon=True) for worker in workers
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __iter__(self):
        return self

    def __next__(self):
        with self._changed:
            if not self._changed.wait_for(self._is_decided, self._timeout):
                raise UserError(f"{self._name}: nothing came for {self._timeout} s; is the disk or the network stuck?")
            result, error = self._results.pop(self._taken, (_END, None))
            self._taken += 1
            self._changed.notify_all()
        if error is not None or result is _END:
            self.close()
            raise error if error is not None else StopIteration
        return result

    def close(self):
        """Ends the threads after the items in the making; further iteration ends at once."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(self._timeout)
            if thread.is_alive():
                raise UserError(f"{self._name}: the item in the making did not end within {self._timeout} s")
        self._results.clear()
        self._begun = self._taken

    def _is_decided(self):
        """-> whether the next result is there, or none will come."""
        return self._taken in self._results or (self._ended and self._taken >= self._begun)

    def _work(self, worker):
        try:
            while (begun := self._begin()) is not None:
                number, item = begun
                try:
                    self._finish(number, worker(item))
                except BaseException as error:  # The consumer's to handle.
                    self._finish(number, _END, error)
        finally:
            worker.close()

    def _begin(self):
        """-> (number, item) of the next item, as soon as there is room for its result; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._begun < self._taken + self._most)
            if self._ended:
                return None
            number, self._begun = self._begun, self._begun + 1
            try:
                item, error = next(self._items, _END), None
            except BaseException as raised:
                item, error = _END, raised
            if item is _END:
                self._finish(number, _END, error)
                return None
            return number, item

    def _finish(self, number, result, error=None):
        with self._changed:
            self._results[number] = result, error
            self._ended = self._ended or result is _END
            self._changed.notify_all()
