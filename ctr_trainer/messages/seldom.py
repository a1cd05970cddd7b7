"""Log lines about what clients do, which must not fill the log."""

import logging
import time

_EVERY_SECONDS = 10.0


class Seldom:
    """Warns at most once in ten seconds, and counts the lines that it leaves out.

    Args:
      log: the logger.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._next, self._left_out = log, 0.0, 0

    def warning(self, text: str, *arguments: object) -> None:
        """Logs a warning, or counts it if the last one was less than ten seconds ago."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        more = f" ({self._left_out} such lines were left out)" if self._left_out else ""
        self._next, self._left_out = now + _EVERY_SECONDS, 0
        self._log.warning(f"{text}{more}", *arguments, stacklevel=2)
