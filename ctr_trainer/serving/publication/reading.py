"""What the readers of both kinds of places share: local towers, retries, and errors about rows."""

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ctr_trainer.serving.publication.records import Record
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.messages.errors import UserError

_KEPT = 3  # The towers of the record that is served, of the previous one, and of the next one.
_FIRST_SECONDS, _MOST_SECONDS = 1.0, 60.0
_PAUSE_SECONDS = 0.005


def pause() -> None:
    """Sleeps for 5 ms; a refresh calls it between its parts, so that the threads that answer requests can run.

    Without pauses, all requests that arrive within the 15 ms of a refresh compete with it.
    """
    time.sleep(_PAUSE_SECONDS)


class DenseFiles:
    """The dense towers of the last records, each in a directory of its own below a local directory."""

    def __init__(self, directory: str) -> None:
        self._directory = LocalPath(directory)
        self._kept: list[str] = []

    def path_of(self, record: Record) -> str:
        """Returns the local directory of a record's tower, which `fetch` has copied."""
        return str(self._directory / _name(record))

    def fetch(self, record: Record, blocks_of: Callable[[str], Iterable[bytes]]) -> None:
        """Copies a record's tower unless it is there, and removes the oldest tower if there are more than three.

        Args:
          record: the record.
          blocks_of: f(name of a file of the tower) -> the file's bytes in blocks.

        Raises:
          UserError: a file is missing, or was altered; the message names it.
        """
        name = _name(record)
        if name in self._kept:
            self._kept.append(self._kept.pop(self._kept.index(name)))
            return
        target = self._directory / name
        target.remove_all()
        for entry in record.dense_files:
            pause()
            _copy(target / entry["file"], entry, blocks_of(entry["file"]))
        self._kept.append(name)
        while len(self._kept) > _KEPT:
            (self._directory / self._kept.pop(0)).remove_all()


def _name(record: Record) -> str:
    # A place that was emptied and filled again may reuse the number of a generation.
    content = zlib.crc32(repr(record.dense_files).encode())
    return os.path.join(f"{record.generation}", f"{record.dense}-{content:08x}")


def _copy(path: LocalPath, entry: dict[str, Any], blocks: Iterable[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    size = crc32 = 0
    with open(path, "wb") as file:
        for block in blocks:
            file.write(block)
            size, crc32 = size + len(block), zlib.crc32(block, crc32)
    if (size, crc32) != (entry["bytes"], entry["crc32"]):
        raise UserError(
            f"the published tower's file {entry['file']} has {size} bytes with the checksum {crc32:08x}, expected "
            f"{entry['bytes']} with {entry['crc32']:08x}: cut off, altered or replaced meanwhile"
        )


class RowsAhead(UserError):
    """The rows are more than one epoch ahead of the served record: refresh, advance, then read again."""


class RowsLost(UserError):
    """The place has lost rows of the served record: requests are refused until all rows are published again."""


class Unreadable:
    """Remembers what could not be read. The next try follows after a pause that doubles, or once the place changes."""

    def __init__(self) -> None:
        self._found: object = None
        self._error: Exception | None = None
        self._wait = self._until = 0.0

    @contextlib.contextmanager
    def reading(self, found: object) -> Iterator[None]:
        """Surrounds a read.

        Args:
          found: identifies what is read: while it is equal and the pause lasts, the last error is raised again.

        Raises:
          UserError, OSError: the block has raised it, now or before the pause.
        """
        again = self._error is not None and found == self._found
        if self._error is not None and again and time.monotonic() < self._until:
            raise self._error.with_traceback(None)
        try:
            yield
        except (UserError, OSError) as error:
            self._wait = min(2 * self._wait, _MOST_SECONDS) if again else _FIRST_SECONDS
            self._found, self._error, self._until = found, error, time.monotonic() + self._wait
            raise
        self._error = None
