"""Writes files atomically: a file is on the disk whole or not at all, even after a kill or a power cut."""

import contextlib
import errno
import fcntl
import json
import mmap
import os
import re
import secrets
from collections.abc import Iterator
from typing import Any

from ctr_trainer.system.messages.errors import UserError

# Size of a write in bytes, large enough for the disk's full speed.
_BUFFER_BYTES = 2 << 20
# With O_DIRECT, the size and the memory address of a write must be multiples of this.
_BLOCK_BYTES = 4096
_DRAFT = re.compile(r"(.+)\.[0-9a-f]{8}\.tmp")


class DirectFile:
    """A new file that is written from this process's memory directly to the disk (Linux's O_DIRECT).

    The page cache copies bytes into newly allocated memory, and keeps them even if nobody reads them: writing 400 MB of
    a checkpoint takes 0.1 to 1.3 s of a core's time through the cache, and 0.05 s directly. Files smaller than 2 MiB,
    and files on file systems without O_DIRECT, are written through the cache.

    Caveat: the file contains all bytes only after it is closed, not after a `flush`.

    Args:
      path: path of a file that does not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)
        self._filled = self._size = 0
        self._is_direct = False

    def __enter__(self) -> "DirectFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            os.close(self._file)
            del self._buffer  # Not closed, because an exception that is being raised may refer to a part of it.

    def write(self, data: Any) -> int:
        """Writes the bytes of a buffer; returns their number."""
        with memoryview(data).cast("B") as data:
            done = 0
            while done < len(data):
                some = min(len(data) - done, _BUFFER_BYTES - self._filled)
                self._buffer[self._filled : self._filled + some] = data[done : done + some]
                self._filled, done = self._filled + some, done + some
                if self._filled == _BUFFER_BYTES:
                    if not self._size:
                        self._pass_the_cache()
                    self._write_out(_BUFFER_BYTES)
            return done

    def flush(self) -> None:
        """Does nothing, because the disk accepts only whole blocks."""

    def _pass_the_cache(self) -> None:
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_DIRECT)
            self._is_direct = True
        except (AttributeError, OSError):
            pass  # Some systems and some file systems do not support it.

    def _finish(self) -> None:
        size = self._size + self._filled
        self._write_out(self._filled + (-self._filled % _BLOCK_BYTES if self._is_direct else 0))
        os.ftruncate(self._file, size)

    def _write_out(self, count: int) -> None:
        """Writes the first `count` bytes of the buffer to the file."""
        with memoryview(self._buffer) as buffer:
            done = 0
            while done < count:
                try:
                    done += os.write(self._file, buffer[done:count])
                except OSError as error:
                    if error.errno != errno.EINVAL or not self._is_direct:
                        raise
                    fcntl.fcntl(self._file, fcntl.F_SETFL, 0)  # The disk has a different block size.
                    self._is_direct = False
        self._size, self._filled = self._size + count, 0


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the path of a draft in the same directory. At the end of the block, the draft is renamed to `path`.

    The draft's bytes are on the disk before the draft is renamed, and the new name is on the disk when the `with`
    statement ends. After a power cut, `path` has either its earlier or its complete new content. If the block raises,
    `path` is unchanged and the draft is removed.

    Caveat: a killed process leaves its draft, `PATH.XXXXXXXX.tmp`. No other process uses this draft.

    Args:
      path: path of a file; its directory must exist.
    """
    draft = f"{os.fspath(path)}.{secrets.token_hex(4)}.tmp"  # `of_draft` expects this format.
    try:
        yield draft
        fsync_path(draft)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    with contextlib.suppress(FileNotFoundError):  # The reader has read the file and removed its directory.
        fsync_path(os.path.dirname(os.path.abspath(path)))


def of_draft(name: str) -> str | None:
    """Returns the name of the file that a draft of `replacing` is for; None if `name` is not a draft's name."""
    found = _DRAFT.fullmatch(name)
    return found and found[1]


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a small file with `replacing`. Creates its directory if there is none.

    Raises:
      UserError: the file cannot be written; the message names the file.
    """
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with replacing(path) as draft, open(draft, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_json(path: str | os.PathLike[str], values: Any, indent: int | None = 1) -> None:
    """Writes values as JSON with `write_text`."""
    write_text(path, json_text(values, indent))


def json_text(values: Any, indent: int | None = 1) -> str:
    """Returns the text of a JSON file."""
    return json.dumps(values, indent=indent) + "\n"


def read_json(path: str | os.PathLike[str], cure: str) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Args:
      cure: advice for the user if the file is unusable, such as `convert the data again`; the end of the message.

    Raises:
      UserError: the file cannot be read, is empty, was cut off or altered, or contains no object.
    """
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; {cure}") from error
    return json_object(path, text, cure)


def json_object(path: object, text: str | bytes, cure: str) -> dict[str, Any]:
    """Returns the JSON object in a text; see `read_json` for arguments and errors."""
    try:
        values = json.loads(text)
    except ValueError as error:
        why = f"is cut off or altered ({error})" if text.strip() else "is empty"
        raise UserError(f"{path}: {why}; {cure}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: holds no JSON object; {cure}")
    return values


def fsync_path(path: str | os.PathLike[str]) -> None:
    """Waits until the bytes of a file, or the entries of a directory, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
