"""Directories for temporary files. No other user can reach them; after a kill, the next process removes them."""

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator

from ctr_trainer.system.files.file_lease import lock
from ctr_trainer.system.messages.errors import UserError

_DIRECTORY, _LOCK = "tmp-", ".lock"
_WAIT_SECONDS, _LOOK_SECONDS = 30.0, 0.01


def private_path(below: str | None = None) -> str:
    """Returns the path of this user's directory in the directory for temporary files, or in `below`."""
    return os.path.join(below or tempfile.gettempdir(), f"ctr_trainer-{os.getuid()}")


@contextlib.contextmanager
def private_directory(below: str | None = None) -> Iterator[str]:
    """Yields the directory of `private_path`, which no other process of this user changes within the block.

    The directory is created if there is none. At the beginning of the block, the directories of killed processes are
    removed from it. At the end, the directory itself is removed if it is empty.

    Raises:
      UserError: another user created the path or can reach it, it is not a directory, or it cannot be locked.
    """
    path, deadline = private_path(below), time.monotonic() + _WAIT_SECONDS
    while True:
        _make(path)
        try:
            held = lock(os.path.join(path, _LOCK))
            break
        except (BlockingIOError, FileNotFoundError):  # Another process creates or removes a directory in it.
            if time.monotonic() > deadline:
                raise UserError(f"{path} is locked for more than {_WAIT_SECONDS:g} s: end the process there") from None
            time.sleep(_LOOK_SECONDS)
        except OSError as error:
            raise UserError(f"{path} cannot be locked: {error.strerror}; set TMPDIR to a local directory") from None
    with held:
        _remove_left(path)
        yield path
        if os.listdir(path) == [_LOCK]:
            os.unlink(os.path.join(path, _LOCK))
            with contextlib.suppress(OSError):  # Another process has just created its lock there.
                os.rmdir(path)


@contextlib.contextmanager
def temporary_directory(below: str | None = None) -> Iterator[str]:
    """Yields the path of a new directory in the private directory. Removes it with all files at the end of the block.

    This process holds a lock as long as the block runs. If the process is killed, the kernel frees the lock, and the
    next process that requests a directory removes this one.

    Args:
      below: parent of the private directory; None for the directory for temporary files (`TMPDIR`).
    """
    with private_directory(below) as private:
        path = tempfile.mkdtemp(prefix=_DIRECTORY, dir=private)
        held = lock(path + _LOCK)
    try:
        yield path
    finally:
        with private_directory(below), held:
            _remove(path)


def _make(path: str) -> None:
    """Creates a directory that only this user can reach, or checks that the existing directory is one."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode=0o700)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return  # It was just removed, and the next attempt creates it.
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if is_own and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        # A thread that still wrote when its process removed the directory creates it again, with the usual mode.
        with contextlib.suppress(FileNotFoundError):
            os.chmod(path, 0o700)
    else:
        raise UserError(
            f"{path}: expected a directory of this user that no other user can reach. Find out who made it and remove "
            "it, or set TMPDIR to a directory of yours"
        )


def _remove_left(private: str) -> None:
    """Removes the directories whose processes have ended. The caller must have locked the private directory."""
    for name in os.listdir(private):
        path = os.path.join(private, name.removesuffix(_LOCK))
        if name.startswith(_DIRECTORY) and name.endswith(_LOCK):
            with contextlib.suppress(BlockingIOError), lock(os.path.join(private, name)):
                _remove(path)
        elif name.startswith(_DIRECTORY) and not os.path.exists(path + _LOCK):
            _remove(path)


def _remove(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path + _LOCK)
