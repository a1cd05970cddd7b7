"""Informs waiting ranks of what the other ranks are doing, and of a rank whose input has ended."""

import contextlib
import logging
from collections.abc import Iterator

import tensorflow as tf

from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.endings import report
from ctr_trainer.ranks.endings.states import LOST_SECONDS, RankStates, StateFile
from ctr_trainer.ranks.notices import Notices, Placement
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import Lost, UserError

_INPUT_ENDED = "input_ended"
_AT_THE_END = (tf.errors.OutOfRangeError, StopIteration)
_log = logging.getLogger(__name__)


class InputEnds:
    """Counts the batches that the graph of this rank reads, and notifies the other ranks when its input ends.

    The other ranks wait for it in the exchange of a step that it never makes. It cannot notify them by a collective,
    because they are inside another one, so it leaves a notice, which waiting ranks look for. If a waiting rank has read
    more batches than the rank that left the notice, its step cannot end.
    """

    def __init__(self, clock: Clock) -> None:
        self._notices, self._rank, self._clock = Notices.of_this_job(), distributed.rank(), clock
        self._batches = 0

    def begin(self) -> None:
        """Removes the notice of an earlier training. Call this before a barrier of all ranks."""
        self._notices.put(_INPUT_ENDED, "")

    def has_read(self) -> None:
        """Counts a batch."""
        self._batches += 1

    @contextlib.contextmanager
    def noticed(self) -> Iterator[None]:
        """Leaves the notice if the block, which runs a step, reaches the end of the input."""
        try:
            yield
        except _AT_THE_END:
            self.ended()
            raise

    def ended(self) -> None:
        """Leaves the notice that this rank makes no more steps."""
        self._notices.put(_INPUT_ENDED, f"{self._rank} {self._batches} {self._clock.step}")

    def problem(self) -> str:
        """Returns a sentence that explains why the current step cannot end; "" if it can."""
        notice = self._notices.get(_INPUT_ENDED)
        if not notice:
            return ""
        rank, batches, step = map(int, notice.split())
        if self._batches <= batches:
            return ""
        pad = "have the shorter inputs padded (RunConfig(uneven_inputs='pad'))" if batches else "give it at least one"
        return (
            f"rank {rank} has no batch for step {step}: its input has ended after {batches} batches, and rank "
            f"{self._rank} has read {self._batches}. All ranks need the same number of batches: {pad}, cut the longer "
            "inputs (Dataset.take), or repeat all of them (Dataset.repeat) and give max_steps"
        )


@contextlib.contextmanager
def observed_phases(clock: Clock, model_dir: str, input_ends: InputEnds) -> Iterator[None]:
    """Makes the watchdog's messages within the block name the ranks for which this rank waits. A collective.

    If a rank cannot write its state to `model_dir`, it logs a warning, and the other ranks cannot see what it is doing.
    """
    # A launcher reads the signs of life even if there is only one rank.
    if distributed.size() == 1 and not Placement.of_this_process().job:
        yield
        return
    watchdog, size = distributed.watchdog(), distributed.size()
    state = None
    try:
        with watchdog.waiting(f"the file system of {model_dir}"):
            state = StateFile(model_dir, distributed.rank(), clock, shared=distributed.local_size() != size)
    except OSError as error:
        _log.warning("rank %d cannot say what it is doing: %s", distributed.rank(), error)
    input_ends.begin()
    # After this barrier, no rank reads a state or a notice of an earlier run.
    distributed.barrier("states")
    states = RankStates(model_dir, size, distributed.rank(), min(LOST_SECONDS, watchdog.timeout))
    watchdog.explain = states.describe_missing

    def hopeless() -> BaseException | None:
        report.running().record_killed()
        if problem := input_ends.problem():
            return UserError(problem)
        return Lost(lost) if (lost := states.lost()) else None

    watchdog.hopeless = hopeless
    try:
        yield
    finally:
        watchdog.explain = watchdog.hopeless = None
        if state is not None:
            state.close()
