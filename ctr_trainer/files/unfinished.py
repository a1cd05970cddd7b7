"""A directory that one process fills. If that process dies, another process may go on, or remove the files."""

import contextlib
import os
import socket

from ctr_trainer.files.file_list import FileList, refuse_others
from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError

MARKER = ".ctr_trainer_unfinished"


class InUse(UserError):
    """The error that another process is filling the directory now."""


class Unfinished:
    """A directory that this process fills; a context manager.

    While the block runs, a hidden file in the directory lists the files that were written, and is locked. The hidden
    file stays for the next process unless `finish` removes it. At the block's end a directory without files is removed.

    Caveat: hosts see each other's locks only if their file system passes them on, see `file_lock.lock`. For a store see
    `StoreLock`.

    Args:
      path: path or URL of the directory, which is made if there is none. It must be empty, or hold only files on such a
        list.
      what: what this process makes, as `conversion`; for messages.

    Raises:
      InUse: another process is filling the directory.
      UserError: the path is a file, the directory holds other files, or the file system has no locks.
    """

    def __init__(self, path, what):
        self.path, self._what = path_of(path), what
        self._made = [each for each in (self.path, *self.path.parents) if not each.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
            self.files = FileList(self.path, MARKER)
        except OSError as error:
            raise UserError(f"{path}: cannot be written to: {error.strerror}") from error
        try:
            refuse_others(self.files, f"an unfinished {what}")
            self.files.remove_drafts()
            self.files.note({"process": os.getpid(), "host": socket.gethostname()})
        except BaseException:
            self._leave()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._leave()

    def add(self, *names):
        """Lists names of files, which may be made from then on. -> the path of the last one"""
        return self.files.add(*names)

    def clear(self, below=""):
        """Removes the listed files, or only those below a directory of the name `below`."""
        self.files.remove(below)

    def finish(self):
        """Removes the list. The files stay."""
        self.files.marker.unlink()

    def _locked(self):
        """-> the hidden file, open and locked."""
        try:
            return (self.path / MARKER).lock()
        except BlockingIOError:
            raise InUse(f"{self.path}: {self._holder()} writes this {self._what} now; wait for its end") from None

    def _holder(self):
        notes = [note for note in FileList(self.path, MARKER).notes if "process" in note]
        return f"process {notes[-1].get('process')} on {notes[-1].get('host')}" if notes else "another process"

    def _leave(self):
        with contextlib.suppress(OSError):
            if not self.files.present():
                self.files.marker.unlink(missing_ok=True)
                for directory in self._made:
                    directory.rmdir()
        self._lock.close()
