"""A lock of a file, for one process at a time."""

import fcntl
import os


def lock(path):
    """Locks a file until the file is closed or this process ends, even by a kill. Makes the file if there is none.

    The process that has the lock may remove the file. The next process then locks a new file.

    Caveat: other hosts see the lock if the file system passes `flock` on: NFS since Linux 2.6.12, CephFS and Lustre do,
    unless they are mounted with local locks.

    Args:
      path: path of the file; its directory exists.

    Returns:
      the open file.

    Raises:
      BlockingIOError: another process has the lock.
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
    """-> whether `path` still names the open file: the process that had the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
