"""A list of the files in a directory that this package wrote. No other file is ever replaced or removed."""

import contextlib
import json

from ctr_trainer.files import durable_file
from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError

_NAMED = 3


class FileList:
    """A file in a directory that lists the files there that may be replaced or removed.

    The list has one JSON line per entry: the name of a file relative to the directory; the name of a directory with `/`
    at its end, which stands for all files below; or an object, which is a note. A line that a kill cut off is ignored.
    It loses no file, because a name is on the disk before its file is made.

    Args:
      directory: directory of the files, or its URL; made with the first entry.
      marker: name of the list, relative to the directory.

    Attributes:
      names: set of the listed names.
      notes: list of the noted objects.
    """

    def __init__(self, directory, marker):
        self.directory, self.marker = path_of(directory), path_of(directory) / marker
        self._hidden = {marker, self.marker.lock_name}
        self.names, self.notes = set(), []
        for line in self.marker.read_bytes().splitlines() if self.marker.is_file() else []:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                self.names.add(entry) if isinstance(entry, str) else self.notes.append(entry)

    def add(self, *names):
        """Lists names of files, which may be made from then on. -> the path of the last one"""
        new = [name for name in names if name not in self.names]
        if new:
            self._append(new)
            self.names.update(new)
        path = self.directory / names[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def note(self, values):
        """Adds a note, an object that JSON can hold."""
        self._append([values])
        self.notes.append(values)

    def others(self):
        """-> names of the files and links in the directory that are not on the list, sorted."""
        own = {*self.present(), *self._hidden}
        return [name for name in self.directory.entries() if name not in own]

    def present(self):
        """-> names of the files on the list that exist, and of their drafts; links are not followed."""
        whole = tuple(name for name in self.names if name.endswith("/"))
        return [
            name
            for name in self.directory.entries()
            if name in self.names or durable_file.of_draft(name) in self.names or name.startswith(whole)
        ]

    def remove(self, below=""):
        """Removes the files on the list, and directories that become empty.

        Args:
          below: name of a directory with `/` at its end, to remove only the files below it; "" for all files.
        """
        for name in self.present():
            if name.startswith(below):
                (self.directory / name).unlink()
                for parent in (self.directory / name).parents:
                    if parent == self.directory or any(parent.iterdir()):
                        break
                    parent.rmdir()

    def remove_drafts(self):
        """Removes the drafts of files on the list that killed processes left."""
        for name in self.present():
            if durable_file.of_draft(name) in self.names:
                (self.directory / name).unlink()

    def discard(self):
        """Removes the files on the list, the list itself, and directories that become empty."""
        self.remove()
        self.marker.unlink(missing_ok=True)
        for directory in (self.marker.parent, self.directory):
            with contextlib.suppress(OSError):  # The directory holds other files, or is gone already.
                directory.rmdir()

    def _append(self, entries):
        self.marker.parent.mkdir(parents=True, exist_ok=True)
        # The line before may be cut off.
        self.marker.append("".join(f"\n{json.dumps(entry)}\n" for entry in entries))


def refuse_others(files, what):
    """Raises UserError if a directory holds files that are not on its list; names some of them.

    Args:
      files: FileList.
      what: what wrote the listed files, as `an unfinished conversion`.
    """
    others = files.others()
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        raise UserError(
            f"{files.directory} holds files that are not of {what}: {', '.join(others[:_NAMED])}{more}; "
            "name another directory, or move them away"
        )
