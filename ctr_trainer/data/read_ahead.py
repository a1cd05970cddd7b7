"""Computes or reads items in background threads, ahead of the consumer and in order."""

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from typing import Generic, TypeVar

from ctr_trainer.system.messages.errors import UserError

T = TypeVar("T")
R = TypeVar("R")


class OrderedMap(Generic[T, R]):
    """Iterates over `worker(item)` for each item, in order. One thread per worker computes results in advance.

    Each idle thread takes the next item; threads advance `items` one after another. If a worker or `items` raises an
    exception, the consumer gets it, with its traceback, instead of the result. A consumer that leaves the loop early
    must call `close()`, or use this as a context manager. Without workers there is no thread, and it yields the items.

    A generator, or another OrderedMap, as `items` is closed by a thread that ends; with one worker, by the thread that
    ran it. `name` describes the work for messages, such as `reading /data/train`. At most `ahead` results are computed
    or waiting, by default one more than the workers. Raises UserError if there was no result within `timeout` seconds,
    or if a thread did not end within them after `close()`.
    """

    def __init__(
        self,
        workers: Sequence[Callable[[T], R]],
        items: Iterable[T],
        name: str = "mapping",
        timeout: float = 1800,
        ahead: int | None = None,
    ) -> None:
        self._items, self._name, self._timeout = iter(items), name, timeout
        self._taking = threading.Lock()  # Guards the items, and the order of `_begun`.
        self._begun: queue.SimpleQueue[futures.Future] = queue.SimpleQueue()  # The results that are not taken yet.
        self._room = threading.Semaphore(ahead or len(workers) + 1)
        self._ended = self._closed = False  # If `_ended`, no thread takes another item.
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=name, daemon=True) for worker in workers
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> "OrderedMap[T, R]":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> "OrderedMap[T, R]":
        return self

    def __next__(self) -> R:
        if self._closed:
            raise StopIteration
        if not self._threads:
            return next(self._items)  # type: ignore[return-value]  # Without a worker, the results are the items.
        try:
            result = self._begun.get(timeout=self._timeout)
            error = result.exception(self._timeout)
        except (queue.Empty, futures.TimeoutError):
            raise UserError(
                f"{self._name}: no progress for {self._timeout} s; check whether the disk or the network hangs"
            ) from None
        self._room.release()
        if error is not None:
            self.close()
            raise error
        return result.result()

    def close(self) -> None:
        """Stops the threads after their current items. Further iteration ends immediately."""
        self._ended = self._closed = True
        self._room.release()
        for thread in self._threads:
            thread.join(self._timeout)
            if thread.is_alive():
                raise UserError(f"{self._name}: the current item did not end within {self._timeout} s")
        if not self._threads:
            self._close_items()

    def _close_items(self) -> None:
        if hasattr(self._items, "close"):
            self._items.close()

    def _work(self, worker: Callable[[T], R]) -> None:
        while True:
            self._room.acquire()
            try:
                with self._taking:
                    if self._ended:
                        break
                    result: futures.Future[R] = futures.Future()
                    self._begun.put(result)
                    item = next(self._items)
                result.set_result(worker(item))
            except BaseException as error:  # Raised again in the consumer, as is StopIteration.
                self._ended = True
                result.set_exception(error)
                break
        self._room.release()  # For another thread that waits, which ends, too.
        with self._taking:
            self._close_items()


def read_ahead(iterable: Iterable[T], depth: int, name: str) -> OrderedMap[T, T]:
    """Iterates over `iterable`, of which a thread reads at most `depth` items ahead; 0 for no thread."""
    return OrderedMap([lambda item: item] if depth else [], iterable, name, ahead=depth + 1)
