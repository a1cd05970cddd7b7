"""The directory of a job, which one process locks. If it is in a store, a local directory stages its files."""

import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from ctr_trainer.system.files.lease import PathLease
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import is_local, path_of
from ctr_trainer.system.files.temporary import private_directory, private_path
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_FETCHED = ("*.jsonl", "*.log", "autotune.csv")  # Patterns of the files that the next run appends to.


@contextlib.contextmanager
def held_directory(directory: Any, refusal: Callable[[str], str]) -> Iterator[PathLease]:
    """Locks a directory within the block by its file `.lock`. For `refusal`, see `FileLease`.

    Creates the directory if there is none. A directory that was created here is removed at the end if it is empty.

    Yields:
      the lock, whose `check` raises UserError if this process has lost the lock.
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


def local_directory(directory: Any) -> str:
    """Returns the path of the local directory for files that a job appends to.

    For a URL, it is in this user's private directory, the same for all processes of this user on this host. Otherwise
    it is `directory` itself.
    """
    path = path_of(directory)
    if is_local(directory):
        return str(path)
    name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return os.path.join(private_path(), f"job-{name}")


def make_local_directory(directory: Any) -> str:
    """Creates the `local_directory` of a directory unless it exists. Returns its path.

    Raises:
      UserError: the local directory would be in the private directory of `temporary`, which another user can reach.
    """
    path = local_directory(directory)
    if is_local(directory):
        os.makedirs(path, exist_ok=True)
        return path
    with private_directory():
        os.makedirs(path, mode=0o700, exist_ok=True)
    return path


class InPlace:
    """The staging of a local directory, which needs no copies."""

    def __init__(self, path: str) -> None:
        self.path = path

    def upload(self) -> None:
        """Does nothing, because the files are already in their directory."""


class Staging:
    """A local directory whose files are copied to a directory in a store.

    Hidden files are not copied, because they are for the processes of this host.
    """

    def __init__(self, directory: Any) -> None:
        self.path, self._store = make_local_directory(directory), path_of(directory)
        self._sent: dict[str, tuple[int, int]] = {}

    def clear(self) -> None:
        """Removes the files that a killed job has left."""
        for name in LocalPath(self.path).files():
            LocalPath(self.path, name).unlink(missing_ok=True)

    def fetch(self) -> None:
        """Downloads the files to which this job appends."""
        for pattern in _FETCHED:
            for file in self._store.glob(pattern):
                LocalPath(self.path, file.name).write_bytes(file.read_bytes())

    def upload(self) -> None:
        """Uploads the files that have changed since the last call.

        Raises:
          UserError: the store rejects a file; the message names the file.
        """
        local = LocalPath(self.path)
        for name in local.files():
            if any(part.startswith(".") for part in name.split("/")):
                continue
            with contextlib.suppress(FileNotFoundError):  # Another process has removed its file.
                stamp = (local / name).stamp()
                if self._sent.get(name) != stamp:
                    (self._store / name).upload(local / name)
                    self._sent[name] = stamp


@contextlib.contextmanager
def staged(directory: Any, fetches: bool, owns: bool) -> Iterator[InPlace | Staging]:
    """Yields the `Staging` of a directory in a store, or the `InPlace` of a local directory.

    Caveat: a killed job leaves the local directory. The next job with this URL on this host removes the files in it.

    Args:
      fetches: whether this process downloads the files to which the job appends; True for one process of the job.
      owns: whether this process empties the local directory at the beginning, and uploads its files and removes it at
        the end; True for one process of each host. Other processes may write there only after a collective.
    """
    if is_local(directory):
        yield InPlace(str(path_of(directory)))
        return
    staging = Staging(directory)
    if owns:
        staging.clear()
    if fetches:
        staging.fetch()
    try:
        yield staging
    finally:
        if owns:
            try:
                staging.upload()
                with private_directory():
                    shutil.rmtree(staging.path, ignore_errors=True)
            except UserError as error:
                _log.error("%s; the files are kept in %s", error, staging.path)
