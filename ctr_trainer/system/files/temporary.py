"""Directories for temporary files. No other user can reach them; after a kill, the next process removes them."""

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator

from ctr_trainer.system.messages.errors import UserError


def private_path(name: str, within: str | None = None) -> str:
    """Returns the path of a directory of this user in `within`; None for the directory for temporary files."""
    return os.path.join(within or tempfile.gettempdir(), f"ctr_trainer-{os.getuid()}-{name}")


@contextlib.contextmanager
def temporary_directory(within: str | None = None) -> Iterator[str]:
    """Yields the path of a new directory, in `within`. Removes it with all files at the end of the block.

    This process locks the directory as long as the block runs. If the process is killed, the kernel frees the lock, and
    the next process of this user that creates a directory removes this one.

    Raises UserError: the file system does not support locks.
    """
    prefix = private_path("tmp-", within)
    for left in glob.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        while True:
            path = tempfile.mkdtemp(prefix=os.path.basename(prefix), dir=os.path.dirname(prefix))
            try:
                stack.enter_context(_locked(path))
                break
            except (BlockingIOError, FileNotFoundError):
                continue  # Another process removes the directory, because it was not locked yet.
            except OSError as error:
                os.rmdir(path)
                setting = "table_dir" if within else "TMPDIR"
                raise UserError(
                    f"{path} cannot be locked: {error.strerror}; set {setting} to a local directory"
                ) from None
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Locks a directory of this user. Raises BlockingIOError, FileNotFoundError, or PermissionError of another user."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_uid != os.getuid():  # It may also be gone, if another process got the lock before.
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        yield
    finally:
        os.close(handle)


def make_directory(path: str) -> None:
    """Creates a directory that only this user can reach, or checks that the existing directory is one.

    Raises UserError: another user created the directory or can reach it, or it is not a directory.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode=0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UserError(
            f"{path}: expected a directory of this user that no other user can reach. Find out who made it and remove "
            "it, or set TMPDIR to a directory of yours"
        )
