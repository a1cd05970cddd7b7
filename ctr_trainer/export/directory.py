"""The directory of an export: an earlier export is replaced once the new one is whole, and nothing else ever is."""

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
    """Gives the path of a directory that the block makes; at the block's end it becomes `path`, on the disk whole.

    Until then it is in `.NAME.unfinished` beside `path`; what a killed export left there is removed.

    Args:
      path: of the export; what is there must be an empty directory or an earlier export without any file added to it.

    Raises:
      UserError: `path` holds anything else; names it. Or another process writes this export now.
    """
    refuse_others(path)
    parent, name = os.path.split(path)
    place = pathlib.Path(parent, f".{name}.unfinished")
    with Unfinished(place, "export") as unfinished:
        new = unfinished.add(f"{_OLD}/", f"{_NEW}/")
        unfinished.clear(f"{_NEW}/")
        yield str(new)
        _list_and_sync(new)
        refuse_others(path)  # Writing took its time.
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
    """Raises UserError where `path` holds anything else than an earlier export; names a file in it."""
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
