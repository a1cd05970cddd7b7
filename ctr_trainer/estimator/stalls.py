"""Lets the ranks of a training run see what the others are doing."""

import contextlib
import logging

from ctr_trainer.messages.errors import Lost, UserError
from ctr_trainer.ranks import distributed, missing_ranks
from ctr_trainer.ranks.heartbeat import Heartbeat
from ctr_trainer.ranks.placement import Placement
from ctr_trainer.ranks.signs_of_life import SECONDS, SignsOfLife

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def observed_phases(clock, model_dir, input_ends):
    """Within it, the watchdog's messages name the ranks that this one waits for. A collective.

    Without a place that it can write to, a rank is not seen by the others, and says so.

    Args:
      clock: `Clock` of the training thread.
      model_dir: where ranks of other hosts look too, if they share it.
      input_ends: `InputEnds` of this rank, which says where the others have nothing left to wait for.
    """
    if distributed.size() == 1 and not Placement.of_this_process().job:  # A launcher looks as well.
        yield
        return
    watchdog, size = distributed.watchdog(), distributed.size()
    heart = None
    try:
        with watchdog.waiting(f"the file system of {model_dir}"):
            heart = Heartbeat(model_dir, distributed.rank(), clock, shared=distributed.local_size() != size)
    except OSError as error:
        _log.warning("rank %d cannot say what it is doing: %s", distributed.rank(), error)
    input_ends.begin()
    # From here on no rank reads what an earlier run has left.
    distributed.barrier("heartbeats")
    watchdog.explain = lambda: missing_ranks.describe(model_dir, size, distributed.rank())
    signs = SignsOfLife(model_dir, size, min(SECONDS, watchdog.timeout))
    watchdog.hopeless = lambda: _error_of(UserError, input_ends.problem()) or _error_of(Lost, signs.problem())
    try:
        yield
    finally:
        watchdog.explain = watchdog.hopeless = None
        if heart is not None:
            heart.close()


def _error_of(kind, problem):
    """-> an exception of a kind with a sentence; None for no sentence."""
    return kind(problem) if problem else None
