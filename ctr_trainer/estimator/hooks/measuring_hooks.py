"""Hooks that measure a training: phases, machine, memory, GPU, and the latency percentiles of `[RunStatus]`."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import psutil
import tensorflow.compat.v1 as tf1

from ctr_trainer.embedding.service.service_metrics import PS_NAMES
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.estimator.hooks.step_hook import StepHook, periodic
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.measuring.latency import UNIT, Latency
from ctr_trainer.system.measuring.resources import core_seconds, resident_bytes

_log = logging.getLogger(__name__)


class PhaseHook(tf1.train.SessionRunHook):
    """Enters a phase of the clock before and after a run. The first and the last of all hooks frame the session.

    Args:
      before, after: names of the phases that begin then.
    """

    def __init__(self, clock: Clock, before: str, after: str) -> None:
        self._clock, self._before, self._after = clock, before, after

    def before_run(self, run_context: tf1.train.SessionRunContext) -> None:
        self._clock.enter(self._before)

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self._clock.enter(self._after)


class LoadHook(StepHook):
    """Measures the load of the machine, from the end of global step `first` to the last step of a run.

    Caveat: it counts the bytes of all processes that use the network interfaces of the machine.
    """

    def __init__(self, store: Store, first: int) -> None:
        super().__init__()
        self._store, self._first = store, first
        self._from: dict[str, Any] | None = None
        self._until: dict[str, Any] | None = None

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self.step == self._first:
            self._from = self._read()

    def end(self, session: tf1.Session) -> None:
        self._until = self._read()

    def results(self) -> dict[str, Any] | None:
        """Returns the load per second; None if the run was too short or did not end.

        `cpu` is the number of cores that this process used. `network` is a dict of interface -> bytes `received` and
        `sent`. If there is a service, `service` has `cpu`, the number of cores that all shards used, and `requests`.
        """
        if self._from is None or self._until is None:
            return None
        begin, end = self._from, self._until
        seconds = max(end["time"] - begin["time"], 1e-9)

        def rate(of: Callable[[dict[str, Any]], float]) -> float:
            return (of(end) - of(begin)) / seconds

        load: dict[str, Any] = {"cpu": rate(lambda at: at["cpu"]), "network": {}}
        for name in end["network"].keys() & begin["network"].keys():
            pairs = zip(("received", "sent"), begin["network"][name], end["network"][name], strict=True)
            rates = {kind: (after - before) / seconds for kind, before, after in pairs}
            if any(rates.values()):
                load["network"][name] = rates
        if end["services"]:
            load["service"] = {
                "cpu": rate(lambda at: sum(service["cpu_seconds"] for service in at["services"])),
                "requests": rate(lambda at: sum(sum(service["requests"].values()) for service in at["services"])),
            }
        return load

    def _read(self) -> dict[str, Any]:
        counters = psutil.net_io_counters(pernic=True)
        return {
            "time": time.perf_counter(),
            "cpu": time.process_time(),
            "network": {name: (each.bytes_recv, each.bytes_sent) for name, each in counters.items()},
            "services": list(self._store.stats().get("services", {}).values()),
        }


class ResourcesHook(StepHook):
    """Records the maximum resident memory, the mean load of the GPU and its maximum memory in use.

    Args:
      read_gpu: the result of `open_gpu` for this worker, or `no_gpu`.
      every_n_steps, every_n_secs: exactly one; the period of the samples. The last sample is taken at the end.

    Attributes:
      resident_bytes: the maximum of this process's resident memory.
      gpu_busy: the mean share of the time for which the GPU was busy; NaN without a GPU.
      gpu_bytes: the maximum of the GPU's memory in use; NaN without a GPU.
    """

    def __init__(
        self,
        read_gpu: Callable[[], tuple[float, int] | None],
        every_n_steps: int | None = None,
        every_n_secs: float | None = None,
    ) -> None:
        super().__init__()
        self._timer = periodic(every_n_steps, every_n_secs)
        self._read_gpu = read_gpu
        self._busy: list[float] = []
        self.resident_bytes, self.gpu_bytes = 0, np.nan
        self._cores = (0.0, 0.0)

    @property
    def gpu_busy(self) -> float:
        return float(np.mean(self._busy)) if self._busy else np.nan

    def core_seconds(self) -> tuple[float, float]:
        """Returns `resources.core_seconds` since the session was created. Threads that ended since do not count."""
        (ran, waited), (ran_before, waited_before) = core_seconds(), self._cores
        return max(ran - ran_before, 0.0), max(waited - waited_before, 0.0)

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._cores = core_seconds()

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self._timer.should_trigger_for_step(self.step):
            self._timer.update_last_triggered_step(self.step)
            self._look()

    def end(self, session: tf1.Session) -> None:
        self._look()

    def _look(self) -> None:
        self.resident_bytes = max(self.resident_bytes, resident_bytes())
        if (seen := self._read_gpu()) is not None:
            self._busy.append(seen[0])
            self.gpu_bytes = float(np.fmax(self.gpu_bytes, seen[1]))


class ServiceStatus:
    """The `[RunStatus]` lines of an embedding service: the requests to all its shards since the previous lines.

    Args:
      store: gives the figures of the shards.
      as_in_graph: see `Latency.status_line`.
    """

    def __init__(self, store: Store, as_in_graph: bool = False) -> None:
        self._store, self._as_in_graph = store, as_in_graph
        self._at_start = self._seen = self._histograms()

    def lines(self) -> list[str]:
        """Returns one line about lookups and one about pushes. Sends one request to each shard."""
        before, self._seen = self._seen, self._histograms()
        if not self._seen:
            return []
        return [latency.status_line(self._as_in_graph) for latency in self._since(before)]

    def totals(self) -> tuple[int, float]:
        """Returns the number of requests since the start up to the last `lines`, and their seconds in the service."""
        latencies = self._since(self._at_start)
        return sum(each.count for each in latencies), sum(each.recorded_seconds for each in latencies)

    def _since(self, before: dict[str, dict[str, str]]) -> list[Latency]:
        of = f"{len(self._seen)} shard{'s' * (len(self._seen) > 1)} of the service"
        return [
            Latency.between(
                name, of, [each[name] for each in before.values()], [each[name] for each in self._seen.values()]
            )
            for name in PS_NAMES
        ]

    def _histograms(self) -> dict[str, dict[str, str]]:
        """Returns a dict of shard's address -> dict of name -> histogram of durations since the shard started."""
        services = self._store.stats().get("services", {})
        return {address: service["histograms"] for address, service in services.items()}


class RunStatusHook(StepHook):
    """Logs `[RunStatus]: OpsEmbeddingLookup statistics => count: 1553  P50: ...` for the time since the previous line.

    A line with the unit precedes the first of these lines, except with `as_in_graph`. While training runs, the lines of
    the service are logged, too. They are omitted at the end, because other ranks may still use the service. The caller,
    which knows when all ranks have ended, then gets the last lines from `ServiceStatus`.

    Args:
      others: functions f() -> another line.
      service: None for a rank that does not log the service's lines.
      as_in_graph: see `Latency.status_line`.
      every_n_steps, every_n_secs: exactly one.
    """

    def __init__(
        self,
        latencies: list[Latency],
        others: Iterable[Callable[[], str]] = (),
        service: ServiceStatus | None = None,
        as_in_graph: bool = False,
        every_n_steps: int | None = None,
        every_n_secs: float | None = None,
    ) -> None:
        super().__init__()
        self.service = service
        self._timer = periodic(every_n_steps, every_n_secs)
        self._latencies, self._others = latencies, others
        self._as_in_graph, self._has_said_unit = as_in_graph, as_in_graph

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._timer.update_last_triggered_step(self.step)

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self._timer.should_trigger_for_step(self.step):
            self._timer.update_last_triggered_step(self.step)
            self._report()
            for line in self.service.lines() if self.service else ():
                _log.info(line)

    def end(self, session: tf1.Session) -> None:
        self._report()

    def _report(self) -> None:
        for latency in self._latencies:
            if latency.count or latency.shows_none:
                if not self._has_said_unit:
                    self._has_said_unit = True
                    _log.info(UNIT)
                _log.info(latency.status_line(self._as_in_graph))
                latency.reset()
        for line in self._others:
            _log.info(line())
