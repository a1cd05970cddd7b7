"""The standard input of a process that another one has started: it closes when that one ends, however it ends."""

import os


def set_at_end_of(descriptor, event):
    """Sets an event when an open descriptor has no more to read; for a thread of its own."""
    while os.read(descriptor, 4096):  # Not through sys.stdin, whose lock would be held at exit.
        pass
    event.set()
