"""Ends a process that waits for too long, and says for what."""

import contextlib
import logging
import os
import threading
import time

_log = logging.getLogger(__name__)
_EXIT_STATUS = 75


class Watchdog:
    """Ends this process when one of its waits takes longer than `timeout`.

    A collective that another rank does not reach cannot be interrupted from Python, so the process ends at once and
    cleans nothing up; `horovodrun` then ends the other ranks, and the next start resumes from the last checkpoint.

    Args:
      who: who waits, for the message: `rank 0`.
      timeout: seconds.
      period: seconds between two looks.
    """

    def __init__(self, who, timeout, period=1.0):
        self._who, self._timeout, self._period = who, timeout, period
        self._waits = {}
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextlib.contextmanager
    def waiting(self, what):
        """Watches the body of the `with`."""
        token = object()
        self._waits[token] = (time.monotonic(), what)
        try:
            yield
        finally:
            del self._waits[token]

    def progress(self):
        """Starts the waits under way anew: what they wait for has been seen to go on."""
        for token, (_, what) in list(self._waits.items()):
            self._waits[token] = (time.monotonic(), what)

    def _watch(self):
        while True:
            time.sleep(self._period)
            for began, what in list(self._waits.values()):
                seconds = time.monotonic() - began
                if seconds > self._timeout:
                    _log.error(
                        "%s has waited %.0f s for %s, longer than --stall_timeout=%g: another rank hangs or is too "
                        "slow; ending the job, which resumes from its last checkpoint when it is started again",
                        self._who,
                        seconds,
                        what,
                        self._timeout,
                    )
                    logging.shutdown()
                    os._exit(_EXIT_STATUS)
