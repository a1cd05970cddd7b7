"""Converts sources on first use and reuses the conversions afterwards."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import pathlib
import time
from collections.abc import Sequence

from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.dataset import FILE, open_dataset
from ctr_trainer.data.source import Input, SourceFile, list_files, named
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.lease import InUse
from ctr_trainer.system.files.outputs import refuse_overlap
from ctr_trainer.system.files.paths import Advanced, path_of
from ctr_trainer.system.messages.errors import UserError

_LOOK_SECONDS = 0.5
_log = logging.getLogger(__name__)


def converted(
    source: Input,
    format: str,
    spec: FeatureSpec,
    directory: str | os.PathLike,
    labels: bool = True,
    advanced: Advanced = lambda text: None,
    timeout: float = 1800.0,
    warns: bool = True,
    max_bad_rows: int = 0,
) -> str:
    """Returns the path of a source's conversion below `directory`. Converts the source first if necessary.

    A conversion is identified by the format, the spec without dims and limits, and the paths, sizes and modification
    times of the source files. If several processes need the same conversion, one of them converts and the others wait,
    as long as it makes progress within `timeout` seconds. Conversions of other files or specs are not removed.

    Without `labels`, a new conversion has neither labels nor weights; an existing one with labels is reused if it has
    all rows. `advanced` is f(text), called whenever the conversion, in this or another process, makes progress. At most
    `max_bad_rows` rows may be left out, or have been left out.
    """
    refuse_overlap(directory, named(source), [])
    files = list_files(source)  # Files that arrive later are not of this conversion.
    target = pathlib.Path(directory) / _name(files, format, spec)
    if not labels and not ((target / FILE).is_file() and open_dataset(target).bad_rows == 0):
        spec = spec.without_labels()
        target = pathlib.Path(directory) / _name(files, format, spec)
    what = f"converting {source} on first use"
    seen: dict[str, int] | None = None
    is_new, is_own = not (target / FILE).is_file(), False
    since = time.monotonic()
    while not (target / FILE).is_file():
        try:
            convert(
                format,
                files,
                target,
                spec,
                max_bad_rows=max_bad_rows,
                advanced=lambda rows: advanced(f"{what}: {rows:,} rows"),
                warns=warns,
            )
        except InUse as error:
            # Another process is converting the source. Wait as long as its files grow.
            if seen is None:
                _log.info("%s", error)
            if (sizes := _sizes(target)) != seen:
                seen, since = sizes, time.monotonic()
                advanced(str(error))
            if time.monotonic() - since > timeout:
                raise UserError(
                    f"{error}; it has written nothing for {timeout:g} s: stop that process and restart this one, or "
                    "remove its directory"
                ) from error
            time.sleep(_LOOK_SECONDS)
        except UserError:
            if not (target / FILE).is_file():  # Another process may have just finished it.
                raise
        else:
            is_own = True
    if is_new and not _is_of(target.name, files, format, spec):
        if is_own:  # It may end with a part of a row. Another process checks and removes its own.
            path_of(target).remove_all()
        raise UserError(f"{source} has changed while it was converted; convert it when its files are complete")
    if left_out := open_dataset(target).bad_rows:
        said = f"{target}, the conversion of {source} on first use, lacks {left_out} bad rows"
        if left_out > max_bad_rows:
            raise UserError(f"{said}. Increase max_bad_rows (now {max_bad_rows}), or correct the rows")
        _warn_once(said)
    return str(target)


def _is_of(name: str, files: Sequence[SourceFile], format: str, spec: FeatureSpec) -> bool:
    """Returns whether the files are those from which the name of a conversion was made."""
    with contextlib.suppress(FileNotFoundError):
        return _name(files, format, spec) == name
    return False


@functools.cache
def _warn_once(said: str) -> None:
    _log.warning("%s", said)


def _sizes(directory: pathlib.Path) -> dict[str, int]:
    sizes = {}
    for file in directory.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # The other process may have just renamed a draft.
            sizes[file.name] = file.stat().st_size
    return sizes


def _name(files: Sequence[SourceFile], format: str, spec: FeatureSpec) -> str:
    """Returns the name of a conversion's directory."""
    paths = [path_of(file.path).absolute() for file in files]
    values = dataclasses.replace(spec, limits=()).with_dim(1).to_dict()  # Dims and limits change no key.
    for each in (*values["lookup"], *values["pretrained"]):
        del each["file"]  # Its hash identifies it.
    identity = [
        format,
        values,
        *(() if spec.labelled else ("unlabelled",)),
        [(str(path), *path.stamp()) for path in paths],
    ]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]
