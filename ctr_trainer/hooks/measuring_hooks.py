"""Hooks that measure a training: the clock's phases, the load of the machine, memory and GPU."""

import time

import numpy as np
import psutil
import tensorflow as tf

from ctr_trainer.hooks.step_hook import Order, StepHook, periodic
from ctr_trainer.measuring.resources import resident_bytes


class StepClockHook(StepHook):
    """The first of all hooks: begins a step, ends its session run, and measures the whole run.

    Args:
      clock: `Clock` of the thread of the steps.

    Attributes:
      steps: done in this run.
      seconds: that they took, up to the end of the last one's session run, with syncs and checkpoints but without
        start-up and evaluations.
    """

    order = Order.CLOCK

    def __init__(self, clock):
        super().__init__()
        self._clock = clock
        self.steps, self.seconds = 0, 0.0

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._clock.step = self.step

    def before_run(self, run_context):
        self._clock.step = self.step + 1
        self._clock.enter("hooks")

    def after_micro_batch(self, run_context, run_values):
        self._clock.enter("hooks")

    def after_step(self, run_context, run_values):
        self._clock.enter("hooks")
        self.steps += 1
        self.seconds = self._clock.training_seconds()


class SessionClockHook(tf.compat.v1.train.SessionRunHook):
    """The last of all hooks: before a run the session's time begins, after it that of the loop.

    Args:
      clock: `Clock` of the thread of the steps.
    """

    order = Order.SESSION

    def __init__(self, clock):
        self._clock = clock

    def before_run(self, run_context):
        self._clock.enter("session")

    def after_run(self, run_context, run_values):
        self._clock.enter("loop")


class LoadHook(StepHook):
    """Counts from after the first `skip_steps` steps of a run to its last one.

    Caveat: the bytes are all that pass the machine's network interfaces, whoever sends them.

    Args:
      store: of `open_store`; a lone worker's has no service.
      skip_steps: at least 1.
    """

    order = Order.LOAD

    def __init__(self, store, skip_steps):
        super().__init__()
        self._store, self._skip_steps = store, skip_steps
        self._done = 0
        self._from = self._until = None

    def after_step(self, run_context, run_values):
        self._done += 1
        if self._done == self._skip_steps:
            self._from = self._read()

    def end(self, session):
        self._until = self._read()

    def results(self):
        """-> dict of what happened a second: `cpu` (cores that this process used), `network` (by interface,
        `received` and `sent` bytes), and where there is a service `service`: `cpu` (cores that all shards used) and
        `requests`; None of a run that was too short or did not end.
        """
        if self._from is None or self._until is None:
            return None
        begin, end = self._from, self._until
        seconds = max(end["time"] - begin["time"], 1e-9)

        def rate(of):
            return (of(end) - of(begin)) / seconds

        load = {"cpu": rate(lambda at: at["cpu"]), "network": {}}
        for name in end["network"].keys() & begin["network"].keys():
            received, sent = (rate(lambda at, name=name, i=i: at["network"][name][i]) for i in (0, 1))
            if received or sent:
                load["network"][name] = {"received": received, "sent": sent}
        if end["services"]:
            load["service"] = {
                "cpu": rate(lambda at: sum(service["cpu_seconds"] for service in at["services"])),
                "requests": rate(lambda at: sum(sum(service["requests"].values()) for service in at["services"])),
            }
        return load

    def _read(self):
        counters = psutil.net_io_counters(pernic=True)
        return {
            "time": time.perf_counter(),
            "cpu": time.process_time(),
            "network": {name: (each.bytes_recv, each.bytes_sent) for name, each in counters.items()},
            "services": list(self._store.stats().get("services", {}).values()),
        }


class ResourcesHook(StepHook):
    """Keeps the most memory that was resident, and of the GPU how busy it was on average and its most memory in use.

    Args:
      gpu: `resources.Gpu` or `NoGpu`.
      every_n_steps, every_n_secs: exactly one; between two looks. There is one more at the end.

    Attributes:
      resident_bytes: of this process, the most at a look.
      gpu_busy: share of the time, the mean over the looks; NaN without a GPU.
      gpu_bytes: of the GPU's memory, the most at a look; NaN without a GPU.
    """

    order = Order.WATCH

    def __init__(self, gpu, every_n_steps=None, every_n_secs=None):
        super().__init__()
        self._timer = periodic(every_n_steps, every_n_secs)
        self._gpu, self._busy = gpu, []
        self.resident_bytes, self.gpu_bytes = 0, np.nan

    @property
    def gpu_busy(self):
        return float(np.mean(self._busy)) if self._busy else np.nan

    def after_step(self, run_context, run_values):
        if self._timer.should_trigger_for_step(self.step):
            self._timer.update_last_triggered_step(self.step)
            self._look()

    def end(self, session):
        self._look()

    def _look(self):
        self.resident_bytes = max(self.resident_bytes, resident_bytes())
        if (seen := self._gpu.read()) is not None:
            self._busy.append(seen[0])
            self.gpu_bytes = float(np.fmax(self.gpu_bytes, seen[1]))
