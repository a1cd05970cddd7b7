"""Logs the latency percentiles of a step's parts and of the embedding service."""

import logging
from collections.abc import Callable, Iterable

import tensorflow.compat.v1 as tf1

from ctr_trainer.embedding.service.service_metrics import PS_NAMES
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.estimator.hooks.step_hook import Order, StepHook, periodic
from ctr_trainer.system.measuring.latency import UNIT, Latency
from ctr_trainer.system.messages.errors import ServiceLost

_log = logging.getLogger(__name__)


class ServiceStatus:
    """The `[RunStatus]` lines of an embedding service: what all its shards did since the previous lines.

    Args:
      store: the `Store` of a training; without a service there are no lines.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen = self._histograms()

    def lines(self) -> list[str]:
        """Returns a line of the lookups and a line of the pushes; asks each shard once."""
        if self._store.lost is not None:
            return []
        try:
            before, self._seen = self._seen, self._histograms()
        except ServiceLost:  # The ranks handle it together, in `ServiceLossHook`.
            return []
        if not self._seen:
            return []
        of = f"{len(self._seen)} shard{'s' * (len(self._seen) > 1)} of the service"
        return [
            Latency.between(
                name, of, [each[name] for each in before.values()], [each[name] for each in self._seen.values()]
            ).status_line()
            for name in PS_NAMES
        ]

    def _histograms(self) -> dict[str, dict[str, str]]:
        """Returns by address of a shard, and by name, the durations since the shard started."""
        services = self._store.stats().get("services", {})
        return {address: service["histograms"] for address, service in services.items()}


class RunStatusHook(StepHook):
    """Logs `[RunStatus]: OpsEmbeddingLookup statistics => count: 1553  P50: ...` of the time since the previous line.

    The first of these lines is preceded by a line that says their unit. The lines of the service come with them while
    the training runs. At its end they are omitted, since other ranks may still use the service: the caller, who knows
    when all ranks have ended, asks `ServiceStatus` for the last lines.

    Args:
      latencies: list of `Latency`.
      others: list of f() -> another line.
      service: `ServiceStatus`; None for a rank that does not log the service's lines.
      every_n_steps, every_n_secs: exactly one.
    """

    order = Order.WATCH

    def __init__(
        self,
        latencies: list[Latency],
        others: Iterable[Callable[[], str]] = (),
        service: ServiceStatus | None = None,
        every_n_steps: int | None = None,
        every_n_secs: float | None = None,
    ) -> None:
        super().__init__()
        self.service = service
        self._timer = periodic(every_n_steps, every_n_secs)
        self._latencies, self._others, self._has_said_unit = latencies, others, False

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
                _log.info(latency.status_line())
                latency.reset()
        for line in self._others:
            _log.info(line())
