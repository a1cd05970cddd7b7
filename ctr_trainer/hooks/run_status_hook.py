"""Logs the latency percentiles of a step's parts and of the embedding service."""

import logging
from collections.abc import Callable, Iterable

from ctr_trainer.embedding.service.service_metrics import PS_NAMES
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.hooks.step_hook import Order, StepHook, periodic
from ctr_trainer.measuring.latency import UNIT, Latency
from ctr_trainer.messages.errors import ServiceLost

_log = logging.getLogger(__name__)


class ServiceStatus:
    """The `[RunStatus]` lines of an embedding service: what its shards did since the last lines, all together.

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
        except ServiceLost:  # The ranks agree on that elsewhere.
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
        """Returns by the address of a shard its durations since its start, by name."""
        services = self._store.stats().get("services", {})
        return {address: service["histograms"] for address, service in services.items()}


class RunStatusHook(StepHook):
    """Logs `[RunStatus]: OpsEmbeddingLookup statistics => count: 1553  P50: ...` of the time since the line before.

    The first of these lines is preceded by one that says their unit. The service's lines come with them while the
    training runs. At its end they are missing, since other ranks may still use the service: whoever knows that all
    ranks have ended asks `ServiceStatus` for the last ones.

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

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._timer.update_last_triggered_step(self.step)

    def after_step(self, run_context, run_values):
        if self._timer.should_trigger_for_step(self.step):
            self._timer.update_last_triggered_step(self.step)
            self._report()
            for line in self.service.lines() if self.service else ():
                _log.info(line)

    def end(self, session):
        self._report()

    def _report(self):
        for latency in self._latencies:
            if latency.count or latency.shows_none:
                if not self._has_said_unit:
                    self._has_said_unit = True
                    _log.info(UNIT)
                _log.info(latency.status_line())
                latency.reset()
        for line in self._others:
            _log.info(line())
