"""Warns of a wait that takes long, says for what and for whom, and ends a process that waits for too long."""

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
      warning: seconds after which a wait is named in the log, and again each time that it has doubled; 0 for never.

    Attributes:
      explain: f() -> str, what is known of those that are waited for; None where nothing is.
    """

    def __init__(self, who, timeout, period=1.0, warning=0.0):
        self._who, self._timeout, self._period, self._warning = who, timeout, period, warning
        self._waits = {}
        self._next_warning = warning
        self.explain = None
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
            self._look()

    def _look(self):
        waits = list(self._waits.values())
        if not waits:
            self._next_warning = self._warning
            return
        # A wait within another one says more, the one around it has taken longer.
        seconds, what = time.monotonic() - waits[0][0], " > ".join(what for _, what in waits)
        if seconds > self._timeout:
            _log.error(
                "%s has waited %.0f s for %s, longer than --stall_timeout=%g: another rank hangs or is too slow%s; "
                "ending the job, which resumes from its last checkpoint when it is started again",
                self._who,
                seconds,
                what,
                self._timeout,
                self._explanation(),
            )
            logging.shutdown()
            os._exit(_EXIT_STATUS)
        if seconds < self._warning:
            self._next_warning = self._warning
        elif self._warning and seconds >= self._next_warning:
            self._next_warning = 2 * seconds
            _log.warning("%s has waited %.0f s for %s%s", self._who, seconds, what, self._explanation())

    def _explanation(self):
        if self.explain is None:
            return ""
        try:
            text = self.explain()
        except Exception as error:  # A process that is to end must not live on for a message.
            text = f"who is missing cannot be said: {error}"
        return f" ({text})" if text else ""
