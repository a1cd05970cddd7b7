"""Counts and latencies of a service's requests, for its log and for Prometheus."""

import collections
import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily

from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.messages.errors import UserError

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
# The names of a service's lookups and pushes in the log.
PS_NAMES = ("PsEmbeddingLookup", "PsPushGrad")
# A worker's name ends with an id that is new at each start and not part of the label.
_START = re.compile(r"-[0-9a-f]{32}$")
_MOST_WORKERS = 4096
_SILENT_SECONDS = 5.0  # Until the connection of a silent HTTP client is closed.


class ServiceMetrics:
    """Requests, rows and durations by operation and table, and the time since each worker's last sync.

    | metric | labels | value |
    |---|---|---|
    | `ctr_service_requests_total` | operation, table | requests answered |
    | `ctr_service_rows_total` | operation, table | keys in answered requests |
    | `ctr_service_failures_total` | operation, table | requests refused or failed; `table` is empty if unknown |
    | `ctr_service_request_seconds` | operation | histogram of the time in the store |
    | `ctr_service_table_rows`, `ctr_service_table_bytes` | table | rows, also on disk; bytes in memory |
    | `ctr_service_sync_age_seconds` | worker | since the last put or sync; only the latest 4096 workers |

    `stats`: a function that returns {"tables": {name: {"rows": int, "bytes": int}}}.

    `latencies`: `PsEmbeddingLookup` and `PsPushGrad` of the log, since the start of the service.
    """

    def __init__(self, stats: Callable[[], dict[str, Any]]) -> None:
        self.latencies = tuple(map(Latency, PS_NAMES))
        self._logged = [latency.encoded() for latency in self.latencies]
        self._stats = stats
        self._synced: dict[str, float] = {}
        self._lock = threading.Lock()
        self._registry = CollectorRegistry()
        labels = ("operation", "table")
        name = "ctr_service"
        self._requests = Counter(f"{name}_requests", "Requests answered", labels, registry=self._registry)
        self._rows = Counter(f"{name}_rows", "Keys in answered requests", labels, registry=self._registry)
        self._failures = Counter(f"{name}_failures", "Requests refused or failed", labels, registry=self._registry)
        self._seconds = Histogram(
            f"{name}_request_seconds", "Time in the store", ("operation",), buckets=_SECONDS, registry=self._registry
        )
        self._registry.register(self)

    @contextlib.contextmanager
    def measure(self, operation: str, table: str, rows: int, worker: str | None = None) -> Iterator[None]:
        """Counts a request for `rows` keys and times the body of the `with`; `worker` is the writing worker or None."""
        start = time.perf_counter()
        try:
            yield
        except BaseException:
            self._failures.labels(operation, table).inc()
            raise
        seconds = time.perf_counter() - start
        self.latencies[operation != "pull"].record(seconds * 1e6)
        self._requests.labels(operation, table).inc()
        self._rows.labels(operation, table).inc(rows)
        self._seconds.labels(operation).observe(seconds)
        if worker is not None:
            name = _START.sub("", worker)
            with self._lock:
                self._synced.pop(name, None)
                self._synced[name] = time.monotonic()  # Now the last item, because a dict keeps its order.
                if len(self._synced) > _MOST_WORKERS:
                    del self._synced[next(iter(self._synced))]

    def requests(self) -> dict[str, int]:
        """Returns the number of answered requests since the start by operation, over all tables."""
        counts: collections.Counter[str] = collections.Counter()
        for sample in next(iter(self._requests.collect())).samples:
            if sample.name.endswith("_total"):
                counts[sample.labels["operation"]] += int(sample.value)
        return counts

    def status_lines(self) -> list[str]:
        """Returns the log lines for the time since the last call."""
        before, self._logged = self._logged, [latency.encoded() for latency in self.latencies]
        each = zip(PS_NAMES, before, self._logged, strict=True)
        return [Latency.between(name, "", [earlier], [now]).status_line() for name, earlier, now in each]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields the gauges when Prometheus scrapes them."""
        tables = self._stats()["tables"]
        for figure, text in (("rows", "Rows, also on disk"), ("bytes", "Bytes in memory")):
            gauge = GaugeMetricFamily(f"ctr_service_table_{figure}", text, labels=["table"])
            for name, values in tables.items():
                gauge.add_metric([name], values[figure])
            yield gauge
        age = GaugeMetricFamily("ctr_service_sync_age_seconds", "Since the last put or sync", labels=["worker"])
        with self._lock:
            workers = list(self._synced.items())
        for worker, synced in workers:
            age.add_metric([worker], time.monotonic() - synced)
        yield age

    def serve(self, port: int, host: str) -> int:
        """Serves Prometheus metrics at http://host:port/metrics. Returns the port; for port 0, a free one.

        Raises UserError if the port is taken.
        """
        return serve_metrics(self._registry, port, host).server_port


def serve_metrics(registry: CollectorRegistry, port: int, host: str) -> WSGIServer:
    """Returns a server of Prometheus metrics, which runs in the background; see `ServiceMetrics.serve`."""
    try:
        server, _ = start_http_server(port, host.strip("[]"), registry)
    except OSError as error:
        raise UserError(f"metrics_port={port}: {error.strerror}; name a free port") from None
    handler: Any = server.RequestHandlerClass
    server.RequestHandlerClass = type("_Handler", (handler,), {"timeout": _SILENT_SECONDS})
    return server
