"""Directories for temporary files. No other user can reach them; after a kill, the next process removes them."""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator

from ctr_trainer.system.files.file_lease import lock
from ctr_trainer.system.messages.errors import UserError

_PREFIX, _LOCK = "tmp-", ".lock"


def private_path(below: str | None = None) -> str:
    """Returns the path of this user's directory in the directory for temporary files, or in `below`."""
    return os.path.join(below or tempfile.gettempdir(), f"ctr_trainer-{os.getuid()}")


@contextlib.contextmanager
def temporary_directory(below: str | None = None) -> Iterator[str]:
    """Yields the path of a new directory in this user's directory. Removes it with all files at the end of the block.

    This process holds a lock as long as the block runs. If the process is killed, the kernel frees the lock, and the
    next process that creates a directory removes this one.

    Args:
      below: parent of the user's directory; None for the directory for temporary files (`TMPDIR`).

    Raises:
      UserError: see `make_directory`; or the file system does not support locks.
    """
    while True:
        path = make_directory(below=below)
        try:
            held = lock(path + _LOCK)
        except (BlockingIOError, FileNotFoundError):
            continue  # Another process removes the directory, because it had no lock yet.
        except OSError as error:
            raise UserError(f"{path} cannot be locked: {error.strerror}; set TMPDIR to a local directory") from None
        with held:
            if os.path.exists(path):
                try:
                    yield path
                finally:
                    remove_directory(path)
                return
            remove_directory(path)


def make_directory(name: str = "", below: str | None = None) -> str:
    """Creates a directory in this user's directory, with a new name or with this one, and returns its path.

    Raises:
      UserError: another user created the user's directory or can reach it, or it is not a directory.
    """
    private = private_path(below)
    while True:
        _make_private(private)
        try:
            _remove_left(private)
            if not name:
                return tempfile.mkdtemp(prefix=_PREFIX, dir=private)
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.join(private, name), mode=0o700)
            return os.path.join(private, name)
        except FileNotFoundError:
            pass  # Another process has just removed the user's directory, because it was empty.


def remove_directory(path: str) -> None:
    """Removes a directory of `make_directory` with all files, and the user's directory if it is empty."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path + _LOCK)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))


def _make_private(path: str) -> None:
    """Creates a directory that only this user can reach, or checks that the existing directory is one."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode=0o700)
    with contextlib.suppress(FileNotFoundError):  # It was just removed.
        found = os.lstat(path)
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if not is_own or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UserError(
                f"{path}: expected a directory of this user that no other user can reach. Find out who made it and "
                "remove it, or set TMPDIR to a directory of yours"
            )
        os.chmod(path, 0o700)


def _remove_left(private: str) -> None:
    """Removes the temporary directories of processes that were killed."""
    for name in {name.removesuffix(_LOCK) for name in os.listdir(private) if name.startswith(_PREFIX)}:
        path = os.path.join(private, name)
        with contextlib.suppress(BlockingIOError), lock(path + _LOCK):
            remove_directory(path)
