"""The directory of an export. A complete new export replaces an earlier one, and never replaces other files."""

import contextlib
import os
import pathlib
import re
import time
from collections.abc import Iterator

from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.outputs import FileList, unfinished
from ctr_trainer.system.files.paths import Advanced, Path, is_local, path_of
from ctr_trainer.system.files.temporary import temporary_directory
from ctr_trainer.system.messages.errors import UserError

# TensorFlow Serving does not read `assets.extra`.
_LIST = os.path.join("assets.extra", "ctr_trainer_files")
_NEW, _OLD = "model", "replaced"
_LAST = "saved_model.pb"  # Its presence makes a directory a SavedModel.
# A version, complete or not. TensorFlow Serving reads it as int64.
_VERSION = re.compile(r"\.?(\d{1,18})(?:\.unfinished)?", re.ASCII)


def replacing(path: str, advanced: Advanced = lambda text: None) -> contextlib.AbstractContextManager[str]:
    """Returns a context manager that yields a local directory, whose files become the export when the block ends.

    On a local disk, the directory is in `.NAME.unfinished` next to `path`, and is renamed to `path` at the end. Files
    that a killed export left there are removed. For a store, the directory is temporary. At the end of the block, an
    earlier export is removed from the store and the new files are uploaded, `saved_model.pb` last, so that no reader
    finds an incomplete model. `advanced` is called with a text as files are uploaded.

    At `path`, which may be a URL, there must be nothing, an empty directory, or an earlier export without added files.
    Raises UserError if it holds other files, one of which the message names, or if another process writes this export.
    """
    return _on_disk(str(path_of(path))) if is_local(path) else _in_store(path_of(path), advanced)


@contextlib.contextmanager
def _on_disk(path: str) -> Iterator[str]:
    refuse_others(path)
    parent, name = os.path.split(os.path.abspath(path))
    place = pathlib.Path(parent, f".{name}.unfinished")
    with unfinished(place, "export") as places:
        new = str(places.add(f"{_OLD}/", f"{_NEW}/"))
        places.remove(f"{_NEW}/")
        yield new
        FileList(new, _LIST).add(*LocalPath(new).files())
        for at, _, files in os.walk(new):
            for file in (*files, "."):
                LocalPath(at, file).sync()
        refuse_others(path)  # Others may have written to `path` since the first check.
        if os.path.isdir(path):
            if (place / _OLD).exists():  # A process was killed after it renamed the new export.
                discard(place / _OLD)
            os.rename(path, place / _OLD)
        os.rename(new, path)
        LocalPath(parent).sync()
        if (place / _OLD).exists():
            discard(place / _OLD)
        places.marker.unlink()
    with contextlib.suppress(OSError):
        place.rmdir()


@contextlib.contextmanager
def _in_store(path: Path, advanced: Advanced) -> Iterator[str]:
    refuse_others(path)
    with temporary_directory() as place:
        new = LocalPath(place, _NEW)
        yield str(new)
        refuse_others(path)
        names = sorted(new.files(), key=lambda name: name == _LAST)
        earlier = FileList(path, _LIST)
        earlier.remove()
        earlier.add(*names)
        for name in names:
            (path / name).copy_from(new / name, advanced)


def is_export(path: str | os.PathLike[str] | Path) -> bool:
    """Returns whether the directory at a path or URL is an export of this package."""
    return (path_of(path) / _LIST).is_file()


def discard(path: str | os.PathLike[str] | Path) -> bool:
    """Removes an export; files that were added to it stay. Returns whether the directory is gone."""
    FileList(path, _LIST).discard()
    return not path_of(path).exists()


def next_version(parent: str | os.PathLike[str] | Path) -> str:
    """Returns the path of a new version, which is greater than each version in `parent`.

    It is the time in seconds since 1970, unless there is a version as great: the clock may have been set back.
    """
    return str(path_of(parent) / str(max([int(time.time()), *(number + 1 for number, _ in versions(parent))])))


def versions(parent: str | os.PathLike[str] | Path) -> list[tuple[int, Path]]:
    """Returns the numbers and directories of the versions in a directory, the newest last."""
    place = path_of(parent)
    found = ((_VERSION.fullmatch(path.name), path) for path in (place.iterdir() if place.is_dir() else ()))
    return sorted(((int(each[1]), path) for each, path in found if each), key=lambda version: version[0])


def refuse_others(path: str | os.PathLike[str] | Path) -> None:
    """Raises UserError if `path` holds files that no export wrote; the message names one of them."""
    path = path_of(path).absolute()
    if not path.is_symlink() and not path.exists():
        return
    if path.is_symlink() or not path.is_dir():
        raise UserError(f"{path} is not a directory: name another export_dir")
    others = FileList(path, _LIST).others()
    if not others:
        return
    numbers = versions(path)
    cure = (
        f"name a version that does not exist yet: export_dir={path / str(numbers[-1][0] + 1)}"
        if numbers
        else "name another export_dir, or remove it yourself"
    )
    raise UserError(f"{path} holds files that `export` did not write ({others[0]}), so it is not replaced: {cure}")
