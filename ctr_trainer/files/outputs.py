"""Checks what a command writes: never one of its inputs, and never a file that it did not write before."""

import os
import pathlib

from ctr_trainer.files.file_list import FileList
from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError

_LIST = ".ctr_trainer_files"


def refuse_overlap(output, sources, files):
    """Refuses an output that holds an input, is an input, or would match the inputs the next time. Follows links.

    Args:
      output: path or URL of the file or directory to write.
      sources: paths, URLs and patterns of the inputs, as the user gave them.
      files: paths or URLs of the files that the sources stand for.

    Raises:
      UserError: the output is refused; names the output and the input.
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


def refuse_foreign_file(path, is_ours, command):
    """Refuses to replace a file that the command did not write.

    Args:
      path: path or URL of the file to write.
      is_ours: f(path) -> whether the command wrote the file that exists there.
      command: name of the command, as `predict`.

    Raises:
      UserError: the file exists and the command did not write it; names the file.
    """
    there = path_of(path)
    if there.is_dir():
        raise UserError(f"output {path}: is a directory; name a file in it")
    if (there.is_symlink() or there.exists()) and not (there.is_file() and is_ours(path)):
        raise UserError(
            f"output {path}: is there already and was not written by `{command}`; name another file, or remove it"
        )


def refuse_foreign_files(directory, names):
    """Refuses to replace files that are no earlier report.

    Args:
      directory: directory of the reports; a hidden file in it lists the names that `claim` was given.
      names: names of the files to write, or patterns of names.

    Raises:
      UserError: such a file exists and is no earlier report, or the directory is a file; names the file.
    """
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise UserError(f"--output={directory}: is a file; name a directory")
    own = FileList(directory, _LIST).names
    for path in sorted(path for name in names for path in pathlib.Path(directory).glob(name)):
        if path.name not in own:
            raise UserError(f"{path} is there already and is no earlier report; name another --output, or remove it")


def claim(directory, names):
    """Lists files as reports, which may be written from then on. Makes the directory if there is none.

    Returns:
      dict of name -> path of the file.

    Raises:
      UserError: as `refuse_foreign_files`.
    """
    refuse_foreign_files(directory, names)
    FileList(directory, _LIST).add(*names)
    return {name: os.path.join(directory, name) for name in names}
