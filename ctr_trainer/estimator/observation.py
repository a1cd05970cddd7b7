"""What is seen of a training: where its time goes, what its ranks are doing, and whose input has ended."""

import contextlib
import logging
from typing import Any

import numpy as np
import tensorflow as tf

from ctr_trainer.estimator.run_summary import RunSummary
from ctr_trainer.hooks.measuring_hooks import LoadHook, SessionClockHook, StepClockHook
from ctr_trainer.hooks.step_hook import in_order
from ctr_trainer.measuring.clock import Clock
from ctr_trainer.messages.errors import Lost, UserError
from ctr_trainer.ranks import distributed, liveness
from ctr_trainer.ranks.liveness import LOST_SECONDS as SECONDS
from ctr_trainer.ranks.liveness import Heartbeat, SignsOfLife
from ctr_trainer.ranks.notices import Notices, Placement

_INPUT_ENDED = "input_ended"
_AT_THE_END = (tf.errors.OutOfRangeError, StopIteration)
_log = logging.getLogger(__name__)


class InputEnds:
    """Counts the batches that this rank has read, and lets the other ranks know when there are no more.

    A rank without a batch leaves the training, and the others wait for it in the exchange of a step that it never
    makes. It cannot tell them by a collective: they are within another one. So it leaves a notice, which costs a step
    nothing; a rank that waits looks for it, and has proof where it has read more batches than that rank ever will.

    Args:
      notices: `Notices` of the job.
      rank: of this process.
      clock: `Clock` of the training thread.
    """

    def __init__(self, notices, rank, clock):
        self._notices, self._rank, self._clock = notices, rank, clock
        self._batches = 0

    def begin(self):
        """Removes what an earlier training has left; before the ranks meet."""
        self._notices.put(_INPUT_ENDED, "")

    def has_read(self):
        """Counts a batch."""
        self._batches += 1

    @contextlib.contextmanager
    def noticed(self):
        """Leaves the notice where the body of the `with`, a step, finds the input at its end."""
        try:
            yield
        except _AT_THE_END:
            self._notices.put(_INPUT_ENDED, f"{self._rank} {self._batches} {self._clock.step}")
            raise

    def problem(self):
        """Returns why a step cannot end, a sentence; "" where it can."""
        notice = self._notices.get(_INPUT_ENDED)
        if not notice:
            return ""
        rank, batches, step = map(int, notice.split())
        if self._batches <= batches:
            return ""
        pad = "have the shorter inputs padded (RunConfig(uneven_inputs='pad'))" if batches else "give it at least one"
        return (
            f"rank {rank} has no batch for step {step}: its input has ended after {batches} batches, and rank "
            f"{self._rank} has read {self._batches}. All ranks need as many batches: {pad}, cut the longer inputs "
            "(Dataset.take), or repeat all of them (Dataset.repeat) and give max_steps"
        )


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
    watchdog.explain = lambda: liveness.describe_missing(model_dir, size, distributed.rank())
    signs = SignsOfLife(model_dir, size, min(SECONDS, watchdog.timeout))
    watchdog.hopeless = lambda: _error_of(UserError, input_ends.problem()) or _error_of(Lost, signs.problem())
    try:
        yield
    finally:
        watchdog.explain = watchdog.hopeless = None
        if heart is not None:
            heart.close()


def _error_of(kind, problem):
    """Returns an exception of a kind with a sentence; None for no sentence."""
    return kind(problem) if problem else None


class ObservedTraining:
    """Observes a training that is ready to run; made in the training graph's scope.

    Args:
      clock: `Clock` of the training's thread.
      steps: `StepClockHook`, one of `hooks`.
      config: `RunConfig`.
      hooks: of the training's session.
      measuring: `MeasuringHooks`, those of `hooks` that the summary asks for their figures.
      feed: the `Feed` of the training.
      store: of `open_store`.

    Attributes:
      hooks: of the session, in their order, with the one that measures its load if `phase_steps` asks for it.
    """

    def __init__(self, clock, steps, config, hooks, measuring, feed, store):
        self._clock, self._steps, self._feed = clock, steps, feed
        self._service = measuring.service
        self._summary = RunSummary(clock, feed, config, measuring, store)
        self._detailed = {}
        if config.phase_steps:
            self._detailed = {"phases": measuring.trace, "load": LoadHook(store, config.phase_steps)}
            hooks = [*hooks, self._detailed["load"]]
        self.hooks = in_order(hooks)

    def results(self) -> dict[str, Any]:
        """Returns a dict, see `Estimator.train`; rank 0 logs the last lines of the service. A collective."""
        examples = int(distributed.all_sum(np.int64(self._feed.examples), "train_examples"))
        # All ranks are here, so the service has answered all that the training asks of it.
        for line in self._service.lines() if self._service else ():
            _log.info(line)
        return {
            "workers": distributed.size(),
            "steps": self._steps.steps,
            "global_step": self._steps.step,
            "examples": examples,
            "seconds": round(self._steps.seconds, 3),
            "examples_per_sec": round(examples / max(self._steps.seconds, 1e-9), 1),
            "input_wait_seconds": round(self._clock.seconds["read"], 3),
            **{name: hook.results() for name, hook in self._detailed.items()},
            **self._summary.results(self._steps.steps),
        }


class Observation:
    """Observes one training, and changes nothing of it.

    Args:
      config: `RunConfig`.
      model_dir: of the training.

    Attributes:
      clock: `Clock` of the training's thread.
      input_ends: `InputEnds` of this rank.
    """

    def __init__(self, config, model_dir):
        self._config, self._model_dir = config, model_dir
        self.clock = Clock()
        self._steps = StepClockHook(self.clock)
        self.input_ends = InputEnds(Notices.of_this_job(), distributed.rank(), self.clock)

    @property
    def step(self):
        """The global step that was done last."""
        return self._steps.step

    def by_others(self):
        """Returns a context manager within which the other ranks can tell where this one is; see `stalls`."""
        return observed_phases(self.clock, self._model_dir, self.input_ends)

    def of_training(self, hooks, measuring, feed, store):
        """Returns `ObservedTraining`, whose arguments these are; to be made in the training graph's scope."""
        hooks = [self._steps, *hooks, SessionClockHook(self.clock)]
        return ObservedTraining(self.clock, self._steps, self._config, hooks, measuring, feed, store)
