"""What the session's time goes to, and with it a step's."""

import dataclasses
import math

import tensorflow as tf

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.step_hook import StepHook
from ctr_trainer.measuring import step_trace
from ctr_trainer.measuring.clock import since_1970
from ctr_trainer.measuring.phases import PHASES, STEP_TITLES

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class StepPhases:
    """What a step's time goes to; all but the counts are of a step that is not traced.

    Attributes:
      steps: that counted.
      traced_steps: those of them that were traced.
      step_seconds: on average.
      step_deviation: the standard deviation, in seconds.
      seconds: by phase of `phases.STEP_TITLES`.
      accounted: their share of the step.
    """

    steps: int
    traced_steps: int
    step_seconds: float
    step_deviation: float
    seconds: dict
    accounted: float


class StepTraceHook(StepHook):
    """Has TensorFlow time the operations of a step now and then, which tells each phase's share of `session`.

    A traced step takes longer, so it tells only the proportions. With p_i its seconds for purpose i (`step_trace`), and
    R the seconds that the session takes on average in a step without a trace, a phase inside the graph takes

        R * sum p_i / sum_j p_j     over all traced steps

    and `accounted` is the sum of all phases over the step's time, which has also what the loop does between its runs.

    The first `skip_steps` steps count for nothing. The last of them is traced too: TensorFlow prepares its traced runs
    in it. Then the `skip_steps`-th after it, and of those that follow every `every_n_steps`-th.

    All ranks must give it the same periods, since a traced step is slower.

    Args:
      clock: `Clock` of the thread of the steps.
      skip_steps: at least 2.
      every_n_steps: at least 2; one step in `every_n_steps` is traced.
      gpu: whether to trace GPUs too, which costs more.
    """

    phase, order = "tracing", Order.TRACE

    def __init__(self, clock, skip_steps, every_n_steps, gpu=False):
        super().__init__()
        if min(skip_steps, every_n_steps) < 2:
            raise ValueError(f"skip_steps {skip_steps} and every_n_steps {every_n_steps} must be at least 2")
        self._clock, self._skip_steps, self._every_n_steps = clock, skip_steps, every_n_steps
        level = tf1.RunOptions.FULL_TRACE if gpu else tf1.RunOptions.SOFTWARE_TRACE
        self._arguments = tf1.train.SessionRunArgs(None, options=tf1.RunOptions(trace_level=level))
        self._done = self._traced = 0
        # Of the steps that count: the seconds of the session in traced ones, the sum of the seconds of those without a
        # trace, and that of their squares.
        self._traced_session = self._untraced = self._squares = 0.0
        self._purposes = {}
        self._ended, self._from, self._until = None, {}, {}

    def before_run(self, run_context):
        self._is_traced = self._is_due()
        return self._arguments if self._is_traced else None

    def after_micro_batch(self, run_context, run_values):
        if self._is_traced and self._done >= self._skip_steps:
            with self._clock.within(self.phase):
                self._add(run_values.run_metadata.step_stats)

    def after_step(self, run_context, run_values):
        self.after_micro_batch(run_context, run_values)
        with self._clock.within(self.phase):
            self._end_step()

    def share(self, purpose):
        """-> of the session's time, the share that is for a purpose; 0 where no traced step has counted."""
        total = sum(self._purposes.values())
        return self._purposes.get(purpose, 0.0) / total if total else 0.0

    def results(self):
        """-> `StepPhases` as a dict, for JSON; None of a run too short to tell."""
        steps = self._done - self._skip_steps
        if not self._traced or steps == self._traced:
            return None
        untraced = steps - self._traced
        of_step = {name: (self._until[name] - self._from[name]) / steps for name in PHASES}
        session = (steps * of_step.pop("session") - self._traced_session) / untraced
        seconds = {name: session * self.share(name) for name in self._purposes}
        for name, value in of_step.items():
            if value and (key := PHASES[name].step_name):
                seconds[key] = seconds.get(key, 0.0) + value
        accounted = sum(seconds.values())
        step, variance = accounted + of_step["loop"], self._squares / untraced - (self._untraced / untraced) ** 2
        found = StepPhases(
            steps=steps,
            traced_steps=self._traced,
            step_seconds=step,
            step_deviation=math.sqrt(max(variance, 0.0)),
            seconds={name: seconds[name] for name in STEP_TITLES if name in seconds},
            accounted=accounted / step,
        )
        return dataclasses.asdict(found)

    def _is_due(self):
        since = self._done + 1 - self._skip_steps
        return since == 0 or (since >= self._skip_steps and (since - self._skip_steps) % self._every_n_steps == 0)

    def _add(self, step_stats):
        began, _ = self._clock.last["session"]
        for name, value in step_trace.seconds_by_purpose(step_stats, since_1970(began)).items():
            self._purposes[name] = self._purposes.get(name, 0.0) + value

    def _end_step(self):
        """Within `tracing`, so that all other phases have ended."""
        seconds = dict(self._clock.seconds)
        step = sum(seconds.values()) - seconds["tracing"]
        if self._done >= self._skip_steps:
            if self._is_traced:
                self._traced += 1
                self._traced_session += seconds["session"] - self._until["session"]
            else:
                self._untraced += step - self._ended
                self._squares += (step - self._ended) ** 2
        self._ended, self._until = step, seconds
        self._done += 1
        if self._done == self._skip_steps:
            self._from = seconds
