"""Counts and times of reading a stream, and their Prometheus metrics on rank 0."""

import time
from collections.abc import Iterator
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ctr_trainer.embedding.service.service_metrics import serve_metrics
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.live.stream.plan import Window
from ctr_trainer.system.messages.log_lines import event_text


class Figures:
    """Counts and times of reading a stream, for the log and for Prometheus.

    Attributes:
      lag_records: number of records that were available but not planned yet at the latest check.
      records, bad_rows: number of examples that were read, and number of rows that could not be read.
      event_seconds: the newest event time in the windows whose training has begun; 0 before the first window.
      waiting_seconds: total time during which the brokers did not answer.
      new_keys: the shares of keys that were never trained.
    """

    def __init__(self) -> None:
        self.lag_records = self.records = self.bad_rows = 0
        self.event_seconds = self.waiting_seconds = 0.0
        self._since, self._records_then, self.new_keys = time.monotonic(), 0, NewKeys()

    def add(self, window: Window) -> None:
        """Counts a window that all workers have read."""
        self.records += window.rows
        self.bad_rows += window.bad_rows

    def begin(self, window: Window) -> None:
        """Updates the event time when the training on a window begins."""
        self.event_seconds = max(self.event_seconds, *(report.seconds for report in window.reports.values()))

    @property
    def lag_seconds(self) -> float:
        """Age of the newest trained event; 0 if no records are waiting."""
        return max(time.time() - self.event_seconds, 0.0) if self.lag_records and self.event_seconds else 0.0

    def state(self) -> dict[str, float]:
        """Returns `event_seconds` and `lag_records` by name, for publications of the model."""
        return {"event_seconds": self.event_seconds, "lag_records": self.lag_records}

    def status_line(self) -> str:
        """Returns the `[RunStatus]` line for the time since the previous line."""
        now = time.monotonic()
        rate = (self.records - self._records_then) / max(now - self._since, 1e-9)
        self._since, self._records_then = now, self.records
        return (
            f"[RunStatus]: Stream statistics => lag: {self.lag_records} records, {self.lag_seconds:.1f} s  "
            f"records/s: {rate:.0f}  event time: {event_text(self.event_seconds)}  bad rows: {self.bad_rows}  "
            f"waited for brokers: {self.waiting_seconds:.1f} s"
        )

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics for a Prometheus registry."""
        gauges = {
            "lag_records": ("Records of the stream that were not read yet", self.lag_records),
            "lag_seconds": ("Age of the newest trained event while records wait, else 0", self.lag_seconds),
            "event_seconds": ("Newest trained event time, in seconds since 1970", self.event_seconds),
        }
        counters = {
            "examples": ("Examples that were read", self.records),
            "bad_rows": ("Rows that were left out because they could not be read", self.bad_rows),
            "waiting_seconds": ("Time during which the brokers did not answer", self.waiting_seconds),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"ctr_stream_{name}", text, value=value)
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"ctr_stream_{name}", text, value=value)
        yield from self.new_keys.metrics("ctr_stream")


def serve(figures: Figures, port: int) -> WSGIServer:
    """Serves the metrics on all addresses of this host, for a Prometheus elsewhere; port 0 picks a free port."""
    registry = CollectorRegistry()
    registry.register(figures)
    return serve_metrics(registry, port, "0.0.0.0")
