"""SIGTERM and SIGINT of a process that has its own way to end."""

import contextlib
import signal

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def handled(handler, numbers=NUMBERS):
    """Has `handler` take the signals within the block; after it they are taken as before. Call it on the main thread.

    Args:
      handler: as `signal.signal` takes it: f(number, frame), or `signal.SIG_IGN`.
      numbers: of the signals.
    """
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
