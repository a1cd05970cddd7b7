"""Checks the outputs of a command, which must not overwrite its inputs, or files that it did not write itself."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ctr_trainer.system.files.local_path import of_draft, refusing_unwritable
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.files.staging import held_directory
from ctr_trainer.system.messages.errors import UserError

_NAMED = 3
UNFINISHED = ".ctr_trainer_unfinished"
_LOCK = ".lock"


class FileList:
    """A file in a directory that lists the files of this directory that may be replaced or removed.

    The list has one JSON line per name: a file relative to the directory, or a directory followed by `/`, for all files
    below it. A line that a kill cut off is ignored. No file is missing from the list, because a name is on the disk
    before its file is created.

    Args:
      directory: path or URL of the directory, which is created with the first entry.
      marker: name of the list, relative to the directory.
    """

    def __init__(self, directory: Any, marker: str) -> None:
        self.directory, self.marker = path_of(directory), path_of(directory) / marker
        self._hidden = {marker, marker + _LOCK}
        self.names: set[str] = set()
        for line in self.marker.read_bytes().splitlines() if self.marker.is_file() else []:
            with contextlib.suppress(ValueError):
                self.names.add(json.loads(line))

    def add(self, *names: str) -> Path:
        """Adds names of files to the list, after which the files may be created. Returns the path of the last file."""
        if new := [name for name in names if name not in self.names]:
            self.marker.parent.mkdir(parents=True, exist_ok=True)
            # A kill may have cut off the previous line.
            self.marker.append("".join(f"\n{json.dumps(name)}\n" for name in new))
            self.names.update(new)
        path = self.directory / names[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def others(self) -> list[str]:
        """Returns the sorted names of the files and links in the directory that are not on the list."""
        own = {*self.present(), *self._hidden}
        return [name for name in self.directory.entries() if name not in own]

    def present(self) -> list[str]:
        """Returns the names of existing files on the list, and of their drafts, without following links."""
        whole = tuple(name for name in self.names if name.endswith("/"))
        return [
            name
            for name in self.directory.entries()
            if name in self.names or of_draft(name) in self.names or name.startswith(whole)
        ]

    def remove(self, below: str = "") -> None:
        """Removes the files on the list, only those in `below` if given, and directories that become empty."""
        for name in self.present():
            if name.startswith(below):
                (self.directory / name).unlink()
                for parent in (self.directory / name).parents:
                    if parent == self.directory or any(parent.iterdir()):
                        break
                    parent.rmdir()

    def discard(self) -> None:
        """Removes the files on the list, the list itself, and directories that become empty."""
        self.remove()
        self.marker.unlink(missing_ok=True)
        for directory in (self.marker.parent, self.directory):
            with contextlib.suppress(OSError):  # The directory has other files, or no longer exists.
                directory.rmdir()


@contextlib.contextmanager
def unfinished(path: Any, what: str) -> Iterator[FileList]:
    """Yields the list of the files of a directory that this process fills.

    While the block runs, a hidden file in the directory lists the written files, and another one is locked. The list
    remains for the next process unless the block removes its `marker`. At the end of the block, a directory without
    files is removed.

    Caveat: hosts see each other's locks only if their file system supports this, see `FileLease`. For a store, see
    `StorePlace`.

    Args:
      path: path or URL of the directory, which is created if there is none. It must be empty, or contain only files on
        such a list.
      what: name of the output for messages, such as `conversion`.

    Raises InUse if another process is writing to the directory, and UserError if the path is a file, the directory has
    other files, or it cannot be written to.
    """
    place = path_of(path)

    def refusal(holder: str) -> str:
        return f"{place}: {holder} writes this {what} now; wait until it ends"

    with contextlib.ExitStack() as stack:
        stack.enter_context(held_directory(place, refusal, UNFINISHED + _LOCK))
        with refusing_unwritable(path):
            files = FileList(place, UNFINISHED)
        try:
            if others := files.others():
                more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
                raise UserError(
                    f"{place} holds files that are not of an unfinished {what}: {', '.join(others[:_NAMED])}{more};"
                    " name another directory, or move them away"
                )
            for name in files.present():
                if of_draft(name) in files.names:  # A killed process has left it.
                    (place / name).unlink()
            files.marker.append("")  # It marks the directory as unfinished.
            yield files
        finally:
            with contextlib.suppress(OSError):
                if not files.present():
                    files.marker.unlink(missing_ok=True)


def refuse_overlap(output: Any, sources: Iterable[Any], files: Iterable[Any]) -> None:
    """Raises UserError if an output is, contains or is inside an input, or would match a pattern of the inputs.

    Links are followed.

    Args:
      sources: paths, URLs and patterns of the inputs, as the user specified them.
      files: paths or URLs of the files that the sources match.
    """
    real, place = path_of(output).resolve(), path_of(output).absolute()
    for file in files:
        if path_of(file).resolve().is_relative_to(real):
            raise UserError(f"output {output}: the input {file} is in it and would be overwritten; name another output")
    for source in map(path_of, sources):
        is_there = source.exists()
        for match in [source] if is_there else source.matches():
            if match.is_dir() and real.is_relative_to(match.resolve()):
                raise UserError(f"output {output}: is inside the input {match}; name an output outside of it")
        if not is_there and any(each.match(str(source.absolute())) for each in (place, *place.parents)):
            raise UserError(f"output {output}: the input {source} matches it; name an output that does not match")


def refuse_foreign_file(path: Any, is_ours: Callable[[Any], bool], command: str) -> None:
    """Raises UserError if the path is a directory, or a file that the command did not write.

    `is_ours`: f(path) -> whether the command wrote this existing file.
    """
    there = path_of(path)
    if there.is_dir():
        raise UserError(f"output {path}: is a directory; name a file in it")
    if (there.is_symlink() or there.exists()) and not (there.is_file() and is_ours(path)):
        raise UserError(
            f"output {path}: exists already and was not written by `{command}`; name another file, or remove it"
        )
