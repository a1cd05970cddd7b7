"""Calls a function with a time limit."""

import threading


def within(seconds, function):
    """Calls the function in a thread, and leaves the thread behind if the function takes longer than `seconds`.

    Args:
      seconds: longest time to wait.
      function: f(), which may hang because it reads a file or writes to a pipe.

    Returns:
      what the function returns.

    Raises:
      TimeoutError: the function takes longer than `seconds`.
      Exception: what the function raises.
    """
    results, errors = [], []

    def call():
        try:
            results.append(function())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} s, as of a file system that hangs")
    return results[0]
