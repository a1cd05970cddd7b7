"""The directory of an export. A new export replaces an earlier one once it is whole, and never replaces other files."""

import contextlib
import os
import pathlib

from ctr_trainer.files.durable_file import fsync_path
from ctr_trainer.files.file_list import FileList
from ctr_trainer.files.unfinished import Unfinished
from ctr_trainer.messages.errors import UserError

# TensorFlow Serving leaves `assets.extra` alone.
_LIST = os.path.join("assets.extra", "ctr_trainer_files")
_NEW, _OLD = "model", "replaced"


@contextlib.contextmanager
def replacing(path):
    """Gives the path of a directory for the block to write. At the block's end the directory is renamed to `path`.

    Until then the directory is `.NAME.unfinished` beside `path`. What a killed export left there is removed.

    Args:
      path: path of the export. It must not exist, be an empty directory, or be an earlier export without added files.

    Raises:
      UserError: `path` holds other files, one of which the message names; or another process writes this export now.
    """
    refuse_others(path)
    parent, name = os.path.split(path)
    place = pathlib.Path(parent, f".{name}.unfinished")
    with Unfinished(place, "export") as unfinished:
        new = unfinished.add(f"{_OLD}/", f"{_NEW}/")
        unfinished.clear(f"{_NEW}/")
        yield str(new)
        _list_and_sync(new)
        refuse_others(path)  # Others may have written to `path` since the first check.
        if os.path.isdir(path):
            if (place / _OLD).exists():  # A process was killed when the new one was in its place already.
                FileList(place / _OLD, _LIST).discard()
            os.rename(path, place / _OLD)
        os.rename(new, path)
        fsync_path(parent)
        if (place / _OLD).exists():
            FileList(place / _OLD, _LIST).discard()
        unfinished.finish()
    with contextlib.suppress(OSError):
        place.rmdir()


def refuse_others(path):
    """Raises UserError if `path` holds files that no export wrote; the message names one of them."""
    path = os.path.abspath(path)
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isdir(path):
        raise UserError(f"{path} is no directory: name another --export_dir")
    others = FileList(path, _LIST).others()
    if not others:
        return
    versions = [int(name) for name in os.listdir(path) if name.isdecimal()]
    cure = (
        f"name a version that is not there yet: --export_dir={path}/{max(versions) + 1}"
        if versions
        else ("name another --export_dir, or remove it yourself")
    )
    raise UserError(f"{path} holds files that `export` did not write ({others[0]}), so it is not replaced: {cure}")


def _list_and_sync(directory):
    names = [
        os.path.relpath(os.path.join(at, name), directory) for at, _, files in os.walk(directory) for name in files
    ]
    FileList(directory, _LIST).add(*sorted(names))
    for at, _, files in os.walk(directory):
        for file in (*files, "."):
            fsync_path(os.path.join(at, file))
