"""Writes files atomically: a file is on the disk whole or not at all, even after a kill or a power cut."""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from typing import Any

from ctr_trainer.system.messages.errors import UserError

_DRAFT = re.compile(r"(.+)\.[0-9a-f]{8}\.tmp")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the path of a draft in the same directory. At the end of the block, the draft is renamed to `path`.

    The draft's bytes are on the disk before the draft is renamed, and the new name is on the disk when the `with`
    statement ends. If the block raises, `path` is unchanged and the draft is removed.

    Caveat: a killed process leaves its draft, `PATH.XXXXXXXX.tmp`. No other process uses this draft.
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
    """Writes a small file with `replacing`. Creates its directory. Raises UserError if the file cannot be written."""
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with replacing(path) as draft, open(draft, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_json(path: str | os.PathLike[str], values: Any, indent: int | None = 1) -> None:
    """Writes values as JSON with `write_text`."""
    write_text(path, json.dumps(values, indent=indent) + "\n")


def read_json(path: str | os.PathLike[str], cure: str) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Raises UserError, which ends with the advice `cure`, if the file cannot be read, is cut off or contains no object.
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
