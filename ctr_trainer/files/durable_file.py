"""Files that are on the disk whole or not at all, whatever ends the process or the machine."""

import contextlib
import json
import os
import re
import secrets

from ctr_trainer.messages.errors import UserError

_DRAFT = re.compile(r"(.+)\.[0-9a-f]{8}\.tmp")


@contextlib.contextmanager
def replacing(path):
    """Gives the path of a draft in the same directory; at the end of the block the draft takes the place of `path`.

    The draft's bytes are on the disk before it is renamed, and the new name before this returns: after a power cut
    `path` holds what it held before, or all that was written. A block that raises leaves `path` as it was and no draft.

    Caveat: a process that is killed leaves its draft, `PATH.XXXXXXXX.tmp`. No other process takes it for its own.

    Args:
      path: of a file; its directory exists.
    """
    draft = f"{os.fspath(path)}.{secrets.token_hex(4)}.tmp"  # as `of_draft` knows them
    try:
        yield draft
        fsync_path(draft)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    fsync_path(os.path.dirname(os.path.abspath(path)))


def of_draft(name):
    """-> the name of the file that a draft of `replacing` is for; None of another name."""
    found = _DRAFT.fullmatch(name)
    return found and found[1]


def write_text(path, text):
    """Writes a small file by `replacing`; its directory is made if need be.

    Raises:
      UserError: it cannot be written; names the file.
    """
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with replacing(path) as draft, open(draft, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_json(path, values, indent=1):
    """As `write_text`, of what JSON can hold."""
    write_text(path, json.dumps(values, indent=indent) + "\n")


def read_json(path, cure):
    """-> what a JSON file holds, an object.

    Args:
      cure: what to do where the file cannot be used, as `convert the data again`.

    Raises:
      UserError: it cannot be read, is empty, was cut off or altered, or holds no object; names the file and the cure.
    """
    try:
        with open(path, "rb") as file:
            text = file.read()
        values = json.loads(text)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; {cure}") from error
    except ValueError as error:
        why = f"is cut off or altered ({error})" if text.strip() else "is empty"
        raise UserError(f"{path}: {why}; {cure}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: holds no JSON object; {cure}")
    return values


def fsync_path(path):
    """Returns when a file, or a directory's list of files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
