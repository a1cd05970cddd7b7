"""A file that one process at a time has locked."""

import fcntl
import os


def lock(path):
    """Locks a file, made if need be, until it is closed or this process ends, however it ends. -> the open file

    Who has the lock may remove the file: then the next one locks a new one.

    Caveat: other hosts see the lock where the file system passes `flock` on (NFS since Linux 2.6.12, CephFS and Lustre,
    unless mounted with local locks).

    Args:
      path: in a directory that exists.

    Raises:
      BlockingIOError: another process has it.
      OSError: the file cannot be made, or its file system has no locks.
    """
    while True:
        file = open(path, "a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                return file
        except OSError:
            file.close()
            raise
        file.close()


def _is_at(file, path):
    """-> whether an open file is still what `path` names: who had the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
