"""Stops a training in order when a signal asks it to."""

import itertools

import numpy as np

from ctr_trainer.hooks.stop_hook import StopHook
from ctr_trainer.ranks import distributed, last_words
from ctr_trainer.ranks.notices import Notices
from ctr_trainer.ranks.stopping import Stopping

_TRAININGS = itertools.count()  # Of this process, the same on all ranks.


def stop_hook(grace_secs):
    """-> the `StopHook` of a training. A collective.

    Args:
      grace_secs: see `StopHook`.
    """
    rank, size = distributed.rank(), distributed.size()

    def all_sum(told):
        return distributed.all_sum(told, "stopping", watched=False)

    all_sum(np.zeros((2, size), np.int64))  # Makes its graph and its session now, and not beside steps.
    notices = Notices.of_this_job()
    if size > 1 and not notices.address:
        grace_secs = 0.0  # Without horovodrun a rank could not tell the others.
    words, name = last_words.of_this_process(), next(_TRAININGS)
    stopping = Stopping(rank, size, name, notices, all_sum, distributed.watchdog(), words.is_one_lost)
    return StopHook(stopping, words.signals, grace_secs)


def stopped_text(stop, step, path):
    """-> the last line of a training that has stopped.

    Args:
      stop: its `StopHook`.
      step: its last one.
      path: of the checkpoint of that step.
    """
    whom = "" if len(stop.asked) == distributed.size() else f" to rank {', '.join(map(str, stop.asked))}"
    return (
        f"stopped by {last_words.name_of(stop.signal)}{whom} after step {step}; the checkpoint {path} is saved: the "
        "same command goes on from there"
    )
