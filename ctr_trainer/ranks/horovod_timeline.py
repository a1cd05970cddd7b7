"""Horovod's timeline: a Chrome trace of each exchange, which Horovod writes where an environment variable says so."""

import os

from ctr_trainer.messages.errors import UserError

_START = 200  # A timeline's first event lies within this many bytes.


def prepare(timeline):
    """Has Horovod write its timeline to a file; called before Horovod starts, which reads the variable then.

    If Horovod cannot open the file, it fails later, in its own thread. So the file's directory is made here.

    Args:
      timeline: the file.

    Raises:
      UserError: the file is there and does not begin as Horovod's timelines do: it would be emptied.
    """
    path = os.path.abspath(timeline)
    if os.path.lexists(path) and (not os.path.isfile(path) or os.path.getsize(path)):
        start = b""
        if os.path.isfile(path):
            with open(path, "rb") as file:
                start = file.read(_START)
        if start.strip() != b"[" and b'"ph":' not in start:
            raise UserError(f"--horovod_timeline={path} exists and is not a timeline; name another file")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.environ["HOROVOD_TIMELINE"] = path
