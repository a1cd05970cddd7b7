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
from ctr_trainer.embedding.table.cold_rows import STATS, status_line
from ctr_trainer.estimator.hooks.ending_hooks import StepHook
from ctr_trainer.estimator.run_length import EverySeconds, EverySteps
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.measuring.latency import UNIT, Latency, core_seconds, resident_bytes

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


class MachineHook(StepHook):
    """Measures the machine: memory, GPU and cores of this process, and the load after the profiled steps.

    Caveat: the load has the bytes of all processes that use the network interfaces of the machine.

    Args:
      read_gpu: the result of `open_gpu` for this worker, or `no_gpu`.
      every_n_steps: the period of the samples of memory and GPU. The last sample is taken at the end.
      load_from: the global step after which the load is measured; None to measure no load.

    Attributes:
      resident_bytes: the maximum of this process's resident memory.
      gpu_busy: the mean share of the time for which the GPU was busy; NaN without a GPU.
      gpu_bytes: the maximum of the GPU's memory in use; NaN without a GPU.
    """

    def __init__(
        self,
        store: Store,
        read_gpu: Callable[[], tuple[float, int] | None],
        every_n_steps: int,
        load_from: int | None = None,
    ) -> None:
        self._store, self._read_gpu, self._load_from = store, read_gpu, load_from
        self._samples = EverySteps(every_n_steps)
        self._busy: list[float] = []
        self.resident_bytes, self.gpu_bytes = 0, np.nan
        self._cores = (0.0, 0.0)
        self._loads: list[dict[str, Any]] = []  # At the step `load_from`, and at the end.

    @property
    def gpu_busy(self) -> float:
        return float(np.mean(self._busy)) if self._busy else np.nan

    def core_seconds(self) -> tuple[float, float]:
        """Returns `latency.core_seconds` since the session was created. Threads that ended since do not count."""
        (ran, waited), (ran_before, waited_before) = core_seconds(), self._cores
        return max(ran - ran_before, 0.0), max(waited - waited_before, 0.0)

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._cores = core_seconds()

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self.step == self._load_from:
            self._loads.append(self._load())
        if self._samples.is_due(self.step):
            self._look()

    def end(self, session: tf1.Session) -> None:
        if self._loads:
            self._loads.append(self._load())
        self._look()

    def load(self) -> dict[str, Any] | None:
        """Returns the load per second; None if the run was too short or did not end.

        `cpu` is the number of cores that this process used. `network` is a dict of interface -> bytes `received` and
        `sent`. If there is a service, `service` has `cpu`, the number of cores that all shards used, and `requests`. If
        there are rows on disk, `disk` has the rows that were `found` there.
        """
        if len(self._loads) < 2:
            return None
        begin, end = self._loads
        seconds = max(end["time"] - begin["time"], 1e-9)
        load: dict[str, Any] = {"cpu": (end["cpu"] - begin["cpu"]) / seconds, "network": {}}
        for name in end["network"].keys() & begin["network"].keys():
            pairs = zip(("received", "sent"), begin["network"][name], end["network"][name], strict=True)
            rates = {kind: (after - before) / seconds for kind, before, after in pairs}
            if any(rates.values()):
                load["network"][name] = rates
        if end["service"]:
            load["service"] = {name: (end["service"][name] - at) / seconds for name, at in begin["service"].items()}
        if "disk" in end:
            load["disk"] = {"found": (end["disk"] - begin["disk"]) / seconds}
        return load

    def _load(self) -> dict[str, Any]:
        counters, stats = psutil.net_io_counters(pernic=True), self._store.stats()
        shards = stats.get("services", {}).values()
        found = [table["disk_found"] for table in stats["tables"].values() if "disk_found" in table]
        cpu = sum(shard["cpu_seconds"] for shard in shards)
        requests = sum(sum(shard["requests"].values()) for shard in shards)
        return {
            "time": time.perf_counter(),
            "cpu": time.process_time(),
            "network": {name: (each.bytes_recv, each.bytes_sent) for name, each in counters.items()},
            "service": {"cpu": cpu, "requests": requests} if shards else {},
            **({"disk": sum(found)} if found else {}),
        }

    def _look(self) -> None:
        self.resident_bytes = max(self.resident_bytes, resident_bytes())
        if (seen := self._read_gpu()) is not None:
            self._busy.append(seen[0])
            self.gpu_bytes = float(np.fmax(self.gpu_bytes, seen[1]))


class ServiceStatus:
    """The `[RunStatus]` lines of a store since the previous ones: the requests to a service, and the rows on disk.

    Args:
      store: gives the figures of the shards.
      as_in_graph: see `Latency.status_line`.
      directory: where `summarize` writes; None to write nothing.
    """

    def __init__(self, store: Store, as_in_graph: bool = False, directory: str | None = None) -> None:
        self._store, self._as_in_graph, self._directory = store, as_in_graph, directory
        self._stats = store.stats()
        self._seen = self._histograms()

    def lines(self) -> list[str]:
        """Returns the lines about lookups, pushes and tables with rows on disk. Sends one request to each shard."""
        earlier, self._stats = self._stats["tables"], self._store.stats()
        before, self._seen = self._seen.values(), self._histograms()
        now = self._seen.values()
        of, found = f"{len(now)} shard{'s' * (len(now) > 1)} of the service", []
        for name in PS_NAMES if now else ():
            latency = Latency.between(name, of, [each[name] for each in before], [each[name] for each in now])
            found.append(latency.status_line(self._as_in_graph))
        tables = self._stats["tables"].items()
        return found + [status_line(name, table, earlier.get(name, {})) for name, table in tables if STATS[0] in table]

    def summarize(self, step: int) -> None:
        """Writes the figures of the tables with rows on disk, as `lines` found them last, for TensorBoard."""
        tables = [(name, table) for name, table in self._stats["tables"].items() if STATS[0] in table]
        values = [
            tf1.Summary.Value(tag=f"{name}/{figure}", simple_value=table[figure])
            for name, table in tables
            for figure in ("rows", *STATS)
        ]
        if values and self._directory:
            tf1.summary.FileWriterCache.get(self._directory).add_summary(tf1.Summary(value=values), step)

    def _histograms(self) -> dict[str, dict[str, str]]:
        """Returns a dict of shard's address -> dict of name -> histogram of durations since the shard started."""
        services = self._stats.get("services", {})
        return {address: service["histograms"] for address, service in services.items()}


class RunStatusHook(StepHook):
    """Logs `[RunStatus]: OpsEmbeddingLookup statistics => count: 1553  P50: ...` for the time since the previous line.

    A line with the unit precedes the first of these lines, except with `as_in_graph`. While training runs, the lines of
    the service are logged, too. They are omitted at the end, because other ranks may still use the service. The caller,
    which knows when all ranks have ended, then gets the last lines from `ServiceStatus`.

    Args:
      latencies: their lines are logged, and then they restart.
      period: a report is made when it is over, and at the end.
      others: functions f() -> another line.
      service: None for a rank that does not log the service's lines.
      as_in_graph: see `Latency.status_line`.
    """

    def __init__(
        self,
        latencies: list[Latency],
        period: EverySeconds,
        others: Iterable[Callable[[], str]] = (),
        service: ServiceStatus | None = None,
        as_in_graph: bool = False,
    ) -> None:
        self._latencies, self._period, self._others = latencies, period, others
        self._service, self._as_in_graph, self._has_said_unit = service, as_in_graph, as_in_graph

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._period.begin()

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self._period.is_over():
            self._period.begin()
            self._report()
            if self._service:
                for line in self._service.lines():
                    _log.info(line)
                self._service.summarize(self.step)

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
