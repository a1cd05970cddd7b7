"""A lock that gives a directory to one process at a time."""

import contextlib

from ctr_trainer.files.paths import path_of


@contextlib.contextmanager
def held(directory, refusal):
    """Locks a directory within the block, by the file `.lock` in it. See `held_file.hold` for the argument `refusal`.

    Makes the directory if there is none, and removes it at the end if it was made here and is empty.

    Args:
      directory: path or URL of the directory.

    Yields:
      the lock; its `check` raises UserError if this process has lost it.
    """
    directory = path_of(directory)
    made = not directory.is_dir()
    directory.mkdir(parents=True, exist_ok=True)
    lock = (directory / ".lock").hold(refusal)
    try:
        yield lock
    finally:
        lock.close()
        if made:
            with contextlib.suppress(OSError):
                directory.rmdir()
