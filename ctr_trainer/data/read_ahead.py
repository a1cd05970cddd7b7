"""Computes or reads items in background threads, ahead of the consumer and in order."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ctr_trainer.system.messages.errors import UserError

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
_END = object()


class Worker(Protocol[T_contra, R_co]):
    """A function that a thread of an `OrderedMap` calls, and closes when the thread ends."""

    def __call__(self, item: T_contra, /) -> R_co:
        """Returns the result of an item."""

    def close(self) -> None:
        """Releases the resources of the function."""


class ClosingIterator(Protocol[R_co]):
    """An iterator that ends with `close()`, or at the end of a `with` block."""

    def __enter__(self) -> "ClosingIterator[R_co]": ...

    def __exit__(self, *error: object) -> None: ...

    def __iter__(self) -> Iterator[R_co]: ...

    def __next__(self) -> R_co: ...

    def close(self) -> None: ...


class OrderedMap(Generic[T, R]):
    """Iterates over `worker(item)` for each item, in order. One thread per worker computes results in advance.

    Each idle thread takes the next item; only one thread at a time advances the items. An exception of a worker or of
    the items is raised in the consumer, with its traceback, in place of the result. A consumer that leaves the loop
    early must call `close()`, or use this as a context manager.

    Args:
      workers: list of f(item). Each is called in its own thread, which calls its `close()` at the end.
      items: iterable, which may be infinite.
      name: description of the work, such as `reading /data/train`, for the threads' name and for error messages.
      timeout: seconds to wait for a result, and for the end of each thread.
      ahead: largest number of results that are computed or waiting; None for one more than the number of workers.

    Raises:
      UserError: there was no result within `timeout`, or a thread did not end within `timeout` after `close()`.
    """

    def __init__(
        self,
        workers: Sequence[Worker[T, R]],
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
        self._ended = False  # If True, no further item is begun.
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

    def _is_decided(self) -> bool:
        """Whether the next result is available, or certain never to come."""
        return self._taken in self._results or (self._ended and self._taken >= self._begun)

    def _work(self, worker: Worker[T, R]) -> None:
        try:
            while (begun := self._begin()) is not None:
                number, item = begun
                try:
                    self._finish(number, worker(item))
                except BaseException as error:  # Raised again in the consumer.
                    self._finish(number, _END, error)
        finally:
            worker.close()

    def _begin(self) -> tuple[int, T] | None:
        """Waits until there is space for another result, and returns the next item's number and the item.

        Returns:
          (number, item), or None at the end.
        """
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


def read_ahead(
    iterable: Iterable[T], depth: int, name: str = "prefetching", timeout: float = 1800
) -> ClosingIterator[T]:
    """Returns an iterator over `iterable` that a background thread keeps at most `depth` items ahead.

    An exception of the iterable is raised in the consumer, with its traceback, in place of the item. A consumer that
    leaves the loop early must call `close()` of the iterator, or use it as a context manager.

    Args:
      iterable: any iterable. A generator is closed in the thread that ran it.
      depth: number of items that may wait, in addition to the one in progress. 0 uses no thread.
      name, timeout: see `OrderedMap`, which raises the same errors.
    """
    items = _Items(iterable)
    return OrderedMap([items], items, name, timeout, ahead=depth + 1) if depth else items


class _Items(Generic[T]):
    """Iterates over an iterable. It is also an `OrderedMap` worker that returns the items unchanged."""

    def __init__(self, iterable: Iterable[T]) -> None:
        self._iterator, self._is_closed = iter(iterable), False

    def __call__(self, item: T) -> T:
        return item

    def __enter__(self) -> "_Items[T]":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> "_Items[T]":
        return self

    def __next__(self) -> T:
        if self._is_closed:
            raise StopIteration
        return next(self._iterator)

    def close(self) -> None:
        """Ends the iteration, and closes the iterator if it is a generator."""
        self._is_closed = True
        if hasattr(self._iterator, "close"):
            self._iterator.close()
