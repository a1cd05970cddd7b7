"""Computes or reads items in background threads, ahead of the consumer and in order."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from ctr_trainer.system.messages.errors import UserError

T = TypeVar("T")
R = TypeVar("R")
_END = object()


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
        self._taking = threading.Lock()  # Guards the items; always acquired before `_changed`.
        self._changed = threading.Condition()  # Guards all attributes below.
        self._results: dict[int, tuple[Any, BaseException | None]] = {}
        self._begun = self._taken = 0
        self._most = ahead or len(workers) + 1
        self._ended = False  # If True, no thread takes another item.
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
        if not self._threads and not self._ended:
            return next(self._items)  # type: ignore[return-value]  # Without a worker, the results are the items.
        with self._changed:
            if not self._changed.wait_for(self._is_decided, self._timeout):
                raise UserError(
                    f"{self._name}: no progress for {self._timeout} s; check whether the disk or the network hangs"
                )
            result, error = self._results.pop(self._taken, (_END, None))
            self._taken += 1
            self._changed.notify_all()
        if error is not None or result is _END:
            self.close()
            raise error if error is not None else StopIteration
        return result

    def close(self) -> None:
        """Stops the threads after their current items. Further iteration ends immediately."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(self._timeout)
            if thread.is_alive():
                raise UserError(f"{self._name}: the current item did not end within {self._timeout} s")
        self._results.clear()
        self._begun = self._taken
        if not self._threads:
            self._close_items()

    def _close_items(self) -> None:
        if hasattr(self._items, "close"):
            self._items.close()

    def _is_decided(self) -> bool:
        """Whether the next result is available or will never exist."""
        return self._taken in self._results or (self._ended and self._taken >= self._begun)

    def _work(self, worker: Callable[[T], R]) -> None:
        while (begun := self._begin()) is not None:
            number, item = begun
            try:
                self._finish(number, worker(item))
            except BaseException as error:  # Raised again in the consumer.
                self._finish(number, _END, error)
        with self._taking:
            self._close_items()

    def _begin(self) -> tuple[int, T] | None:
        """Waits for space for another result. Returns (number of the next item, next item), or None at the end."""
        with self._taking:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._begun < self._taken + self._most)
                if self._ended:
                    return None
                number, self._begun = self._begun, self._begun + 1
            try:
                return number, next(self._items)
            except StopIteration:
                self._finish(number, _END)
            except BaseException as error:  # Raised again in the consumer.
                self._finish(number, _END, error)
            return None

    def _finish(self, number: int, result: Any, error: BaseException | None = None) -> None:
        with self._changed:
            self._results[number] = result, error
            self._ended = self._ended or result is _END
            self._changed.notify_all()


def read_ahead(iterable: Iterable[T], depth: int, name: str = "prefetching", timeout: float = 1800) -> OrderedMap[T, T]:
    """Iterates over `iterable`, of which a thread reads at most `depth` items ahead; 0 for no thread."""
    return OrderedMap([lambda item: item] if depth else [], iterable, name, timeout, ahead=depth + 1)
