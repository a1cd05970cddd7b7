"""Which files in a directory this project wrote: no other file is ever replaced or removed."""

import contextlib
import json
import os
import pathlib

from ctr_trainer.files import durable_file
from ctr_trainer.messages.errors import UserError

_NAMED = 3


class FileList:
    """The names of the files in a directory that may be replaced or removed, in a file of that directory.

    It has a JSON line for each entry: the file's name relative to the directory, a directory's name with `/` at its end
    for all below it, or an object with a note. A line that a kill has cut off counts for nothing: a name is on the disk
    before its file is made.

    Args:
      directory: of the files; made when the first entry is.
      marker: name of the list, relative to the directory.

    Attributes:
      names: set of names.
      notes: list of objects.
    """

    def __init__(self, directory, marker):
        self.directory, self.marker = pathlib.Path(directory), pathlib.Path(directory) / marker
        self.names, self.notes = set(), []
        for line in self.marker.read_bytes().splitlines() if self.marker.is_file() else []:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                self.names.add(entry) if isinstance(entry, str) else self.notes.append(entry)

    def add(self, *names):
        """-> the path of the last file; all of them may be made from here on."""
        new = [name for name in names if name not in self.names]
        if new:
            self._append(new)
            self.names.update(new)
        path = self.directory / names[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def note(self, values):
        """Adds an object."""
        self._append([values])
        self.notes.append(values)

    def others(self):
        """-> names of the files and links in the directory that are not on the list, sorted."""
        own = {*self.present(), os.path.relpath(self.marker, self.directory)}
        return [name for name in _files_below(self.directory) if name not in own]

    def present(self):
        """-> names of the files that are there and on the list, and of their drafts; none behind a link."""
        whole = tuple(name for name in self.names if name.endswith("/"))
        return [
            name
            for name in _files_below(self.directory)
            if name in self.names or durable_file.of_draft(name) in self.names or name.startswith(whole)
        ]

    def remove(self, below=""):
        """Removes the files on the list, and the directories that are empty then.

        Args:
          below: a directory's name with `/` at its end, to remove only its files; "" for all.
        """
        for name in self.present():
            if name.startswith(below):
                (self.directory / name).unlink()
                for parent in (self.directory / name).parents:
                    if parent == self.directory or os.listdir(parent):
                        break
                    parent.rmdir()

    def remove_drafts(self):
        """Removes the drafts of files on the list, which processes that were killed have left."""
        for name in self.present():
            if durable_file.of_draft(name) in self.names:
                (self.directory / name).unlink()

    def discard(self):
        """Removes the files on the list, the list, and the directories that are empty then."""
        self.remove()
        self.marker.unlink(missing_ok=True)
        for directory in (self.marker.parent, self.directory):
            with contextlib.suppress(OSError):  # It holds something else, or is gone already.
                directory.rmdir()

    def _append(self, entries):
        self.marker.parent.mkdir(parents=True, exist_ok=True)
        with open(self.marker, "a") as file:
            new = file.tell() == 0
            file.write("".join(f"\n{json.dumps(entry)}\n" for entry in entries))  # the line before may be cut off
            file.flush()
            os.fsync(file.fileno())
        if new:
            durable_file.fsync_path(self.marker.parent)


def refuse_others(files, what):
    """Raises UserError, naming some, where a directory holds files that are not on its list.

    Args:
      files: FileList.
      what: as `an unfinished conversion`, whose list it is.
    """
    others = files.others()
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        raise UserError(
            f"{files.directory} holds files that are not of {what}: {', '.join(others[:_NAMED])}{more}; "
            "name another directory, or move them away"
        )


def _files_below(directory):
    """-> names of all files and links below a directory, relative to it, sorted. Links are not followed."""
    found = []
    for parent, directories, files in os.walk(directory):
        links = [name for name in directories if os.path.islink(os.path.join(parent, name))]
        found += [os.path.relpath(os.path.join(parent, name), directory) for name in (*files, *links)]
    return sorted(found)
