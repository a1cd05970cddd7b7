"""What a training step's time goes to."""

import math
import time

import tensorflow as tf

from ctr_trainer.hooks.step_hook import StepHook
from ctr_trainer.hooks.timed_hook import TimedHook
from ctr_trainer.measuring import step_trace

tf1 = tf.compat.v1

# In the order of a step. `hooks` are the metrics, the logs and other hooks.
PHASES = (
    *("read_sample", "embedding_lookup", "input_to_device", "forward", "loss", "backward", "exchange"),
    *("dense_update", "push", "sync", "hooks", "checkpoint", "evaluation"),
)


class TracedPhasesHook(StepHook):
    """Sorts the time of a step into PHASES: timers around the hooks, and inside the graph a traced step now and then.

    A step's session runs take R seconds on average where they are not traced. A traced one tells only the proportions,
    since it takes longer: with p_i its seconds for purpose i (`step_trace`), a phase inside the graph takes

        R * sum p_i / sum_j p_j     over all traced steps

    and `accounted` is the sum of all phases over the step's time, which has also what the loop does between its runs.

    `read_sample` is the wait for a batch that may have been read ahead, `push` the update of the rows behind a step,
    `sync` the wait for the service, `exchange` what of the dense gradients' reduction nothing else hides, and the
    averaging of --dense_sync_steps. The first `every_n_steps` steps count for nothing.

    All ranks must give it the same period, since a traced step is slower.

    Args:
      hooks: of the session.
      every_n_steps: at least 2; every so many steps one is traced.
      gpu: whether to trace GPUs too, which costs more.

    Attributes:
      around: the session's hooks, timed; this one stands before and behind them.
    """

    def __init__(self, hooks, every_n_steps, gpu=False):
        super().__init__()
        if every_n_steps < 2:
            raise ValueError(f"every_n_steps must be at least 2, not {every_n_steps}")
        self._every_n_steps = every_n_steps
        level = tf1.RunOptions.FULL_TRACE if gpu else tf1.RunOptions.SOFTWARE_TRACE
        self._options = tf1.RunOptions(trace_level=level)
        self._done = self._traced = 0
        self._runs = self._outside = 0.0
        # The sum of the seconds of the steps that count and have no trace, and that of their squares.
        self._untraced = self._squares = 0.0
        self._purposes = {}
        self._from = self._until = {}
        self._timed = [TimedHook(hook) for hook in hooks]
        self.around = [_RunEnd(self), *self._timed, self]

    def before_run(self, run_context):
        self._is_traced = (self._done + 1) % self._every_n_steps == 0
        self._asked, self._run_began = time.time(), time.perf_counter()
        return tf1.train.SessionRunArgs(None, options=self._options) if self._is_traced else None

    def run_ended(self):
        """To be called before all other hooks' `after_run`."""
        self._run_ended = time.perf_counter()

    def after_run(self, run_context, run_values):
        now = time.perf_counter()
        if self._done >= self._every_n_steps:
            run = self._run_ended - self._run_began
            self._outside += now - self._ended - run
            if self._is_traced:
                self._add(step_trace.seconds_by_purpose(run_values.run_metadata.step_stats, self._asked))
            else:
                self._runs += run
                self._untraced += now - self._ended
                self._squares += (now - self._ended) ** 2
        super().after_run(run_context, run_values)
        self._ended = time.perf_counter()  # So that what this hook does is in no step.

    def after_step(self, run_context, run_values):
        counts = self._done >= self._every_n_steps
        self._done += 1
        self._traced += counts and self._is_traced
        if self._done >= self._every_n_steps:
            self._until = self._seconds_of_hooks()
            self._from = self._from or self._until

    def results(self):
        """-> dict of `steps` that counted, `traced_steps`, `step_seconds` (on average, of one that is not traced),
        `step_deviation` (the standard deviation of these), `seconds` (by phase, of such a step) and `accounted` (their
        share of the step); None of a run too short to tell.
        """
        steps = self._done - self._every_n_steps
        if not self._traced or steps == self._traced:
            return None
        untraced = steps - self._traced
        variance = self._squares / untraced - (self._untraced / untraced) ** 2
        run, traced = self._runs / untraced, sum(self._purposes.values())
        step = run + self._outside / steps
        seconds = {name: (self._until[name] - self._from[name]) / steps for name in self._until}
        for name, value in self._purposes.items():
            seconds[name] = seconds.get(name, 0.0) + run * value / traced
        return {
            "steps": steps,
            "traced_steps": self._traced,
            "step_seconds": step,
            "step_deviation": math.sqrt(max(variance, 0.0)),
            "seconds": {name: seconds[name] for name in PHASES if name in seconds},
            "accounted": sum(seconds.values()) / step,
        }

    def _add(self, purposes):
        for name, value in purposes.items():
            self._purposes[name] = self._purposes.get(name, 0.0) + value

    def _seconds_of_hooks(self):
        """-> by phase, the seconds so far outside of the graph."""
        found = {}
        for timed in self._timed:
            for name, value in timed.seconds_by_phase.items():
                found[name] = found.get(name, 0.0) + value
        return found


class _RunEnd(tf1.train.SessionRunHook):
    """Stands before all hooks, so that it is the first to learn that a session's run has ended."""

    def __init__(self, phases):
        self._phases = phases

    def after_run(self, run_context, run_values):
        self._phases.run_ended()
