"""Closes what a training has opened, also after a failure."""

import contextlib


@contextlib.contextmanager
def all_closed(things):
    """Closes, at the end of the block, each of the things that has a `close`; the last one first.

    TensorFlow calls a hook's `end` only after a training without a failure; this closes hooks after any end.

    Args:
      things: sequence of hooks and other objects.
    """
    with contextlib.ExitStack() as stack:
        for thing in things:
            if hasattr(thing, "close"):
                stack.callback(thing.close)
        yield
