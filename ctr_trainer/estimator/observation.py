"""Observes a training: where its time goes, what its ranks are doing, and whose input has ended."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.embedding.store.store import Store
from ctr_trainer.estimator.feed import Feed
from ctr_trainer.estimator.hooks.measuring_hooks import LoadHook, SessionClockHook, StepClockHook
from ctr_trainer.estimator.hooks.step_hook import in_order
from ctr_trainer.estimator.hooks.step_trace_hook import StepTraceHook
from ctr_trainer.estimator.run_summary import MeasuringHooks, RunSummary
from ctr_trainer.ranks import distributed, liveness
from ctr_trainer.ranks.liveness import LOST_SECONDS as SECONDS
from ctr_trainer.ranks.liveness import Heartbeat, SignsOfLife
from ctr_trainer.ranks.notices import Notices, Placement
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import Lost, UserError

_INPUT_ENDED = "input_ended"
_AT_THE_END = (tf.errors.OutOfRangeError, StopIteration)
_log = logging.getLogger(__name__)


class InputEnds:
    """Counts the batches that this rank has read, and tells the other ranks when its input has ended.

    A rank without a batch leaves the training, and the other ranks wait for it in the exchange of a step that it never
    makes. It cannot tell them by a collective, because they are inside another one, so it leaves a notice. Steps do not
    look for notices; a rank that waits does. If it has read more batches than the rank of the notice, the step cannot
    end.

    Args:
      notices: the notices of the job.
      rank: the rank of this process.
      clock: `Clock` of the training thread.
    """

    def __init__(self, notices: Notices, rank: int, clock: Clock) -> None:
        self._notices, self._rank, self._clock = notices, rank, clock
        self._batches = 0

    def begin(self) -> None:
        """Removes the notice of an earlier training; to be called before the ranks meet."""
        self._notices.put(_INPUT_ENDED, "")

    def has_read(self) -> None:
        """Counts a batch."""
        self._batches += 1

    @contextlib.contextmanager
    def noticed(self) -> Iterator[None]:
        """Leaves the notice if the body of the `with`, a step, reaches the end of the input."""
        try:
            yield
        except _AT_THE_END:
            self._notices.put(_INPUT_ENDED, f"{self._rank} {self._batches} {self._clock.step}")
            raise

    def problem(self) -> str:
        """Returns the reason, a sentence, why the current step cannot end; "" if there is none."""
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
    """Within the block, the watchdog's messages name the ranks for which this rank waits. A collective.

    If a rank has no place to which it can write, it logs a warning, and the other ranks cannot see what it is doing.

    Args:
      clock: `Clock` of the training thread.
      model_dir: read by ranks of other hosts as well, if the hosts share it.
      input_ends: tells whether another rank has no batch for the current step.
    """
    # A launcher reads the signs of life even if there is only one rank.
    if distributed.size() == 1 and not Placement.of_this_process().job:
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
    # After this, no rank reads what an earlier run has left.
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


def _error_of(kind: type[BaseException], problem: str) -> BaseException | None:
    return kind(problem) if problem else None


class ObservedTraining:
    """Observes a training that is ready to run; made in the training graph's scope.

    Args:
      clock: `Clock` of the training thread.
      steps: one of `hooks`.
      config: the settings of the training.
      hooks: the hooks of the training's session.
      measuring: the hooks whose figures are in the summary.
      feed: the `Feed` of the training.
      store: has the embedding rows.

    Attributes:
      hooks: the hooks of the session in their order, with a `LoadHook` if `phase_steps` is set.
    """

    def __init__(
        self,
        clock: Clock,
        steps: StepClockHook,
        config: RunConfig,
        *,
        hooks: Sequence[tf1.train.SessionRunHook],
        measuring: MeasuringHooks,
        feed: Feed,
        store: Store,
    ) -> None:
        self._clock, self._steps, self._feed = clock, steps, feed
        self._service = measuring.service
        self._summary = RunSummary(clock, feed, config, measuring, store)
        self._detailed: dict[str, StepTraceHook | LoadHook] = {}
        if config.phase_steps:
            load = LoadHook(store, config.phase_steps)
            self._detailed = {"phases": measuring.trace, "load": load}
            hooks = [*hooks, load]
        self.hooks = in_order(hooks)

    def results(self) -> dict[str, Any]:
        """Returns fields of `TrainResult`; rank 0 logs the last lines of the service. A collective."""
        examples = int(distributed.all_sum(np.asarray(self._feed.examples, np.int64), "train_examples"))
        # All ranks are here, so the service has answered every request of the training.
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
    """Observes one training without changing it.

    Args:
      config: the settings of the training.
      model_dir: the directory of the model.

    Attributes:
      clock: `Clock` of the training thread.
      input_ends: `InputEnds` of this rank.
    """

    def __init__(self, config: RunConfig, model_dir: str) -> None:
        self._config, self._model_dir = config, model_dir
        self.clock = Clock()
        self._steps = StepClockHook(self.clock)
        self.input_ends = InputEnds(Notices.of_this_job(), distributed.rank(), self.clock)

    @property
    def step(self) -> int:
        """The global step of the last step that was done."""
        return self._steps.step

    def by_others(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager within which other ranks can see what this rank is doing."""
        return observed_phases(self.clock, self._model_dir, self.input_ends)

    def of_training(
        self, hooks: Sequence[tf1.train.SessionRunHook], measuring: MeasuringHooks, feed: Feed, store: Store
    ) -> ObservedTraining:
        """Returns the `ObservedTraining` with these arguments; to be called in the training graph's scope."""
        return ObservedTraining(
            self.clock,
            self._steps,
            self._config,
            hooks=[self._steps, *hooks, SessionClockHook(self.clock)],
            measuring=measuring,
            feed=feed,
            store=store,
        )
