"""Serves Prometheus metrics of a stream, on rank 0."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ctr_trainer.stream.figures import Figures


class StreamMetrics:
    """Exports `Figures` as Prometheus metrics.

    | metric | meaning |
    |---|---|
    | `ctr_stream_lag_records` | available records that were not read yet |
    | `ctr_stream_lag_seconds` | age of the newest trained event while records wait, otherwise 0 |
    | `ctr_stream_event_seconds` | newest trained event time, in seconds since 1970 |
    | `ctr_stream_examples_total` | examples that were read |
    | `ctr_stream_bad_rows_total` | rows that could not be trained on |
    | `ctr_stream_waiting_seconds_total` | time in which the brokers did not answer |

    Args:
      figures: `Figures` of the `Coordinator`.
    """

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        now = self._figures
        yield _gauge("lag_records", "Records of the stream that were not read yet", now.lag_records)
        yield _gauge("lag_seconds", "Age of the newest trained event while records wait, else 0", now.lag_seconds)
        yield _gauge("event_seconds", "Newest trained event time, in seconds since 1970", now.event_seconds)
        yield _counter("examples", "Examples that were read", now.records)
        yield _counter("bad_rows", "Rows that were left out because they could not be read", now.bad_rows)
        yield _counter("waiting_seconds", "Time during which the brokers did not answer", now.waiting_seconds)


def serve(figures: Figures, port: int) -> tuple[int, Callable[[], None]]:
    """Serves the metrics at http://host:port/metrics.

    Args:
      figures: `Figures` of the `Coordinator`.
      port: port to listen on; 0 for a free port.

    Returns:
      (port, function that stops the server).
    """
    registry = CollectorRegistry()
    registry.register(StreamMetrics(figures))
    server, _ = start_http_server(port, registry=registry)

    def end() -> None:
        server.shutdown()
        server.server_close()

    return server.server_port, end


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(f"ctr_stream_{name}", text)
    family.add_metric((), value)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily(f"ctr_stream_{name}", text)
    family.add_metric((), value)
    return family
