"""Converts sources on first use and reuses the conversions afterwards."""

import contextlib
import functools
import hashlib
import json
import logging
import os
import pathlib
import time
from collections.abc import Callable

from ctr_trainer.data.conversion.convert import SOURCES, bad_rows_of, progress_bar
from ctr_trainer.data.conversion.encoded_blocks import encoded
from ctr_trainer.data.conversion.leakage import warn_of_leaks
from ctr_trainer.data.conversion.writer import DatasetWriter
from ctr_trainer.data.dataset import FILE, open_dataset
from ctr_trainer.data.observations import Observations
from ctr_trainer.data.source import ConvertedData, Input, list_files
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.outputs import UNFINISHED, InUse, Unfinished, refuse_overlap
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

ROWS_PER_FILE, _ROWS_PER_GROUP = 1_000_000, 50_000
_LOOK_SECONDS = 0.5
_log = logging.getLogger(__name__)


def converted(
    source: Input,
    format: str,
    spec: FeatureSpec,
    directory: str | os.PathLike,
    progress: bool = True,
    labels: bool = True,
    advanced: Callable[[str], object] = lambda text: None,
    timeout: float = 1800.0,
    warns: bool = True,
    max_bad_rows: int = 0,
) -> str:
    """Returns the path of a source's conversion below `directory`. Converts the source first if necessary.

    A conversion is identified by the format, the spec, and the paths, sizes and modification times of the source files.
    An interrupted conversion leaves `NAME.unfinished`. The next conversion continues after the last complete file in
    it (1,000,000 rows per file), but removes it if a source file has changed. If several processes need the same
    conversion, one of them converts and the others wait. Old conversions are not removed automatically.

    Args:
      labels: False if labels and weights are not needed. An existing conversion with labels is reused; a new conversion
        has no labels.
      advanced: f(text), called whenever the conversion, in this or another process, makes progress.
      warns: whether to warn of columns that leak the label.
      timeout: seconds that another process's conversion may make no progress.
      max_bad_rows: number of unusable rows that the conversion may leave out, or may have left out.

    Raises:
      UserError: see `convert`; there are too many unusable rows; or another process's conversion makes no progress.
    """
    target = pathlib.Path(directory) / _name(source, format, spec)
    if not labels and not (target / FILE).is_file():
        spec = spec.without_labels()
        target = pathlib.Path(directory) / _name(source, format, spec)
    draft = target.with_name(f"{target.name}.unfinished")
    seen: dict[str, int] | None = None
    since = time.monotonic()
    while not (target / FILE).is_file():
        refuse_overlap(draft, [source] if isinstance(source, (str, os.PathLike)) else source, _paths(source))
        try:
            with Unfinished(draft, "conversion") as unfinished:
                if not (target / FILE).is_file():  # Another process may have just finished it.
                    _remove_outdated(draft, source)
                    if not (draft / FILE).is_file():
                        _convert(unfinished, format, source, spec, progress, advanced, max_bad_rows)
                    _rename(draft, target)
                    (target / UNFINISHED).unlink()
                    if warns:
                        warn_of_leaks(ConvertedData(target))
        except InUse as error:
            # Another process is converting the source. Wait as long as its files grow.
            if seen is None:
                _log.info("%s", error)
            if (sizes := _sizes(draft)) != seen:
                seen, since = sizes, time.monotonic()
                advanced(str(error))
            if time.monotonic() - since > timeout:
                raise UserError(
                    f"{error}; it has written nothing for {timeout:g} s: stop that process and restart this one to "
                    "continue from its files, or remove its directory"
                ) from error
            time.sleep(_LOOK_SECONDS)
    if left_out := open_dataset(target).bad_rows:
        said = f"{target}, the conversion of {source} on first use, lacks {left_out} bad rows"
        if left_out > max_bad_rows:
            raise UserError(f"{said}. Increase max_bad_rows (now {max_bad_rows}), or correct the rows")
        _warn_once(said)
    return str(target)


@functools.cache
def _warn_once(said: str) -> None:
    _log.warning("%s", said)


def _rename(draft: pathlib.Path, target: pathlib.Path) -> None:
    try:
        draft.rename(target)
    except OSError as error:
        raise UserError(f"{target}: cannot be made from {draft}: {error.strerror}; move it away") from error


def _sizes(draft: pathlib.Path) -> dict[str, int]:
    sizes = {}
    for file in draft.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # The other process may have just renamed the directory.
            sizes[file.name] = file.stat().st_size
    return sizes


def _convert(
    unfinished: Unfinished,
    format: str,
    source: Input,
    spec: FeatureSpec,
    progress: bool,
    advanced: Callable[[str], object],
    max_bad_rows: int,
) -> None:
    """Converts the source to a data set. Keeps the complete files of an unfinished conversion."""
    unfinished.files.note({"source": _paths(source)})
    bad_rows, what = bad_rows_of(format, max_bad_rows), f"converting {source} on first use"
    observed = Observations(spec)
    writer = DatasetWriter(unfinished, "", spec, ROWS_PER_FILE, _ROWS_PER_GROUP)
    try:
        with progress_bar(progress, what) as bar:

            def count(rows: int) -> None:
                bar.update(rows - bar.n)
                advanced(f"{what}: {rows:,} rows")

            done = writer.resume(count)
            if done:
                _log.info("%s: continues after the %d rows that are in %s", what, done, unfinished.path)
            read = functools.partial(SOURCES[format], source, spec)
            for table, statistics in encoded(read, spec, bad_rows, observed, skip=done):
                writer.write(table, statistics)
                count(max(writer.rows, done))
            observed.check()
            writer.close()
        if not writer.statistics.rows:
            raise UserError(f"input {source}: it has no rows")
    except BaseException:
        writer.abandon()
        if not writer.whole_files:  # A later conversion could not continue.
            unfinished.files.discard()
        raise
    writer.finish(bad_rows.count, observed.with_typical(writer.statistics.fitted()))


def _remove_outdated(draft: pathlib.Path, source: Input) -> None:
    """Removes other unfinished conversions of the same paths (changed files, or another spec) that are not in use."""
    for other in draft.parent.glob("*.unfinished"):
        if other != draft and (other / UNFINISHED).is_file():
            with contextlib.suppress(UserError), Unfinished(other, "conversion") as unfinished:
                if any(note.get("source") == _paths(source) for note in unfinished.files.notes):
                    unfinished.files.discard()


def _paths(source: Input) -> list[str]:
    return [str(path_of(file.path).absolute()) for file in list_files(source)]


def _name(source: Input, format: str, spec: FeatureSpec) -> str:
    """Returns the name of a conversion's directory."""
    identity = [
        format,
        spec.to_dict(),
        *(() if spec.labelled else ("unlabelled",)),
        [(path, *path_of(path).stamp()) for path in _paths(source)],
    ]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]
