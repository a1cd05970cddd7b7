"""Reads ahead in a background thread."""

from ctr_trainer.data.ordered_map import OrderedMap


def read_ahead(iterable, depth, name="prefetching", timeout=1800):
    """-> an iterator over `iterable`, which a background thread iterates over, at most `depth` items ahead.

    An exception of the iterable is raised, with its traceback, where the consumer would have got the item. A consumer
    that leaves the loop early calls `close()` of what is returned, or uses it as a context manager.

    Args:
      iterable: any iterable. A generator is closed in the thread that ran it.
      depth: number of items that may wait; one more may be being made. 0 uses no thread.
      name, timeout: as for `OrderedMap`, with its errors.
    """
    items = _Items(iterable)
    return OrderedMap([items], items, name, timeout, ahead=depth + 1) if depth else items


class _Items:
    """The items of an iterable; also the worker of an `OrderedMap` that has nothing more to do with them."""

    def __init__(self, iterable):
        self._iterator, self._is_closed = iter(iterable), False

    def __call__(self, item):
        return item

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __iter__(self):
        return self

    def __next__(self):
        if self._is_closed:
            raise StopIteration
        return next(self._iterator)

    def close(self):
        """Ends the iteration; of a generator, runs its `finally`."""
        self._is_closed = True
        if hasattr(self._iterator, "close"):
            self._iterator.close()
