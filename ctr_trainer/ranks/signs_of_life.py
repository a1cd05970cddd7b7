"""Finds ranks whose process stands still: it was stopped, or its host hangs or is gone without closing connections."""

import time

from ctr_trainer.ranks import heartbeat

SECONDS = 60.0
_AGAIN_SECONDS = 1.5


class SignsOfLife:
    """Watches the heartbeats of the ranks, while this one waits for them.

    It goes by its own clock and by what changes: clocks of other hosts need not agree with it, and what a file system
    shows late is no silence. A rank that works has its heartbeat, whatever it does and however long that takes.

    Args:
      model_dir: directory of the heartbeats.
      size: number of ranks.
      seconds: after which a rank without a new heartbeat is lost.
    """

    def __init__(self, model_dir, size, seconds):
        self._model_dir, self._size, self._seconds = model_dir, size, seconds
        self._seen = {}  # By rank: when its process ran last, by its host's clock; since when that is known here.

    def problem(self):
        """-> which rank is lost, a sentence; "" if none is known to be."""
        if not self._silent():
            return ""
        # If this host was stopped too, as a machine that is moved, the others have as little time behind them.
        time.sleep(_AGAIN_SECONDS)
        named = [
            f"rank {beat.rank} on {beat.host} has given no sign of life for {seconds:.0f} s, in {beat.phase} of step "
            f"{beat.step}"
            for beat, seconds in self._silent()
        ]
        return f"{'; '.join(named)}: its process is stopped or dead, or its host hangs or is gone" if named else ""

    def _silent(self):
        """-> list of (`Beat`, seconds since when it has been known)."""
        now, found = time.monotonic(), []
        for beat in (heartbeat.read(self._model_dir, rank) for rank in range(self._size)):
            if beat is None:
                continue
            alive, since = self._seen.get(beat.rank, (None, now))
            if alive != beat.alive:
                self._seen[beat.rank] = beat.alive, now
            elif now - since >= self._seconds:
                found.append((beat, now - since))
        return found
