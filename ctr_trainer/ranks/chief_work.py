"""Work that rank 0 does for all ranks while they wait, for as long as it takes."""

import logging
import time

from ctr_trainer.ranks import distributed

_log = logging.getLogger(__name__)


def from_chief(work, name):
    """-> what `work` returns on rank 0, which JSON can hold, on every rank. A collective.

    Args:
      work: f(advanced), called on rank 0. It calls `advanced(text)` with text as `12,000 rows` whenever it has
        advanced. As long as it does, the `stall_timeout` ends no rank's wait, and rank 0 logs the text every 30 s.
      name: name of this wait in the watchdog's messages, the same on every rank.
    """
    if not distributed.is_chief():
        while "result" not in (said := distributed.broadcast_object(None, name)):
            pass  # Rank 0 has advanced.
        return said["result"]
    told = time.monotonic()

    def advanced(text):
        nonlocal told
        distributed.watchdog().progress()
        if time.monotonic() - told >= distributed.watchdog().tell_seconds:
            _log.info("%s", text)
            distributed.broadcast_object({"advanced": text}, name)
            told = time.monotonic()

    with distributed.watchdog().waiting(f"its own work in {name}"):
        result = work(advanced)
    return distributed.broadcast_object({"result": result}, name)["result"]
