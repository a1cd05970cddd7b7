"""Work in background threads, ahead of the consumer and in order."""

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
    """A function that a thread of an `OrderedMap` calls, and closes at its end."""

    def __call__(self, item: T_contra, /) -> R_co:
        """Returns the result of an item."""

    def close(self) -> None:
        """Releases what the function holds."""


class ClosingIterator(Protocol[R_co]):
    """An iterator that ends with `close()`, or at the end of a `with` block."""

    def __enter__(self) -> "ClosingIterator[R_co]": ...

    def __exit__(self, *error: object) -> None: ...

    def __iter__(self) -> Iterator[R_co]: ...

    def __next__(self) -> R_co: ...

    def close(self) -> None: ...


class OrderedMap(Generic[T, R]):
    """Iterates over `worker(item)` of each item, in the items' order. One thread per worker computes results ahead.

    A free thread takes the next item, one thread at a time.

    An exception of a worker, or of the items, is raised, with its traceback, where the consumer would have got the
    result. A consumer that leaves the loop early calls `close()`, or uses this as a context manager.

    Args:
      workers: list of f(item). Each is called in a thread of its own, which calls its `close()` at the end.
      items: iterable, which may be endless.
      name: what the consumer waits for, as `reading /data/train`; the threads' name, and part of the error.
      timeout: seconds to wait for a result, and for the end of each thread.
      ahead: largest number of results that wait or are being computed; None for one more than there are workers.

    Raises:
      UserError: no result came within `timeout`, or a thread did not end within `timeout` of `close()`.
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
        self._taking = threading.Lock()  # Guards the items; whoever holds both locks took this one first.
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
                    f"{self._name}: nothing was read for {self._timeout} s; check whether the disk or the network hangs"
                )
            result, error = self._results.pop(self._taken, (_END, None))
            self._taken += 1
            self._changed.notify_all()
        if error is not None or result is _END:
            self.close()
            raise error if error is not None else StopIteration
        return result

    def close(self) -> None:
        """Ends the threads after their present items. Further iteration ends at once."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(self._timeout)
            if thread.is_alive():
                raise UserError(f"{self._name}: reading the current item did not end within {self._timeout} s")
        self._results.clear()
        self._begun = self._taken

    def _is_decided(self) -> bool:
        """Whether the next result is there, or it is certain that none will come."""
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
        """Returns the next item and its number, once there is room for its result; None at the end."""
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
    """Returns an iterator over `iterable`, which a background thread iterates over, at most `depth` items ahead.

    An exception of the iterable is raised, with its traceback, where the consumer would have got the item. A consumer
    that leaves the loop early calls `close()` of what is returned, or uses it as a context manager.

    Args:
      iterable: any iterable. A generator is closed in the thread that ran it.
      depth: number of items that may wait; one more may be being made. 0 uses no thread.
      name, timeout: see `OrderedMap`, with its errors.
    """
    items = _Items(iterable)
    return OrderedMap([items], items, name, timeout, ahead=depth + 1) if depth else items


class _Items(Generic[T]):
    """The items of an iterable; also the worker of an `OrderedMap` that has nothing more to do with them."""

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
        """Ends the iteration; of a generator, runs its `finally`."""
        self._is_closed = True
        if hasattr(self._iterator, "close"):
            self._iterator.close()
