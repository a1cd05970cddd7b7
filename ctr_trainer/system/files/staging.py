"""The directory of a job, which one process locks. If it is in a store, a local directory stages its files."""

import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from ctr_trainer.system.files.local_path import LocalPath, refusing_unwritable
from ctr_trainer.system.files.paths import PathLease, is_local, path_of
from ctr_trainer.system.files.temporary import make_directory, private_path
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_FETCHED = ("*.jsonl", "*.log")  # Patterns of the files that the next run appends to.


@contextlib.contextmanager
def held_directory(directory: Any, refusal: Callable[[str], str], name: str = ".lock") -> Iterator[PathLease]:
    """Locks a directory within the block by its file `name`, and yields the lock. For `refusal`, see `FileLease`.

    Creates the directory if there is none. Directories that were created here are removed at the end if they are empty.
    Raises UserError if it cannot be written to.
    """
    directory = path_of(directory)
    made = [each for each in (directory, *directory.parents) if is_local(each) and not each.exists()]
    with refusing_unwritable(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / name).hold(refusal)
    try:
        yield lock
    finally:
        lock.close()
        with contextlib.suppress(OSError):
            for each in made:
                each.rmdir()


def local_directory(directory: Any) -> str:
    """Returns the path of the local directory for files that a job appends to.

    For a URL, it is a directory below `TMPDIR`, the same for all processes of this user on this host. Otherwise it is
    `directory` itself.
    """
    path = str(path_of(directory))
    return path if is_local(directory) else private_path(f"job-{hashlib.sha256(path.encode()).hexdigest()[:16]}")


def make_local_directory(directory: Any) -> str:
    """Creates the `local_directory` of a directory unless it exists, and returns its path; see `make_directory`."""
    path = local_directory(directory)
    if is_local(directory):
        os.makedirs(path, exist_ok=True)
    else:
        make_directory(path)
    return path


class Staging:
    """The local directory of a job. If the job's directory is in a store, its files are copied there.

    Hidden files are not copied, because they are for the processes of this host.

    `path`: path of the local directory.
    """

    def __init__(self, directory: Any) -> None:
        self.path, self._store = local_directory(directory), None if is_local(directory) else path_of(directory)
        self._sent: dict[str, tuple[int, int]] = {}

    def upload(self) -> None:
        """Uploads the files that have changed since the last call. Raises UserError if the store rejects a file."""
        if self._store is None:
            return
        local = LocalPath(self.path)
        for name in local.files():
            if any(part.startswith(".") for part in name.split("/")):
                continue
            with contextlib.suppress(FileNotFoundError):  # Another process has removed its file.
                stamp = (local / name).stamp()
                if self._sent.get(name) != stamp:
                    (self._store / name).copy_from(local / name)
                    self._sent[name] = stamp


@contextlib.contextmanager
def staged(directory: Any, fetches: bool, owns: bool) -> Iterator[Staging]:
    """Yields the `Staging` of a directory.

    Caveat: a killed job leaves the local directory. The next job with this URL on this host removes the files in it.

    Args:
      fetches: whether this process downloads the files to which the job appends; True for one process of the job.
      owns: whether this process empties the local directory at the beginning, and uploads its files and removes it at
        the end; True for one process of each host. Other processes may write there only after a collective.
    """
    staging = Staging(directory)
    if is_local(directory):
        yield staging
        return
    local = LocalPath(make_local_directory(directory))
    for name in local.files() if owns else ():
        (local / name).unlink(missing_ok=True)
    for file in (file for pattern in _FETCHED for file in path_of(directory).glob(pattern)) if fetches else ():
        (local / file.name).write_bytes(file.read_bytes())
    try:
        yield staging
    finally:
        if owns:
            try:
                staging.upload()
                shutil.rmtree(staging.path, ignore_errors=True)
            except UserError as error:
                _log.error("%s; the files are kept in %s", error, staging.path)
