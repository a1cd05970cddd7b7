"""The metrics of a scoring server, for Prometheus. docs/serving.md describes them."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from ctr_trainer.live.scoring.served_model import Scored

_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_EXAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class ScoreMetrics:
    """The counters and histograms of a server; `registry` may have more metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests answered", "transport", "status")
        self._request_seconds = self._histogram("request_seconds", "Time of a request", _SECONDS, "transport")
        self._wait_seconds = self._histogram("wait_seconds", "Wait of a batch's first request", _SECONDS)
        self._part_seconds = self._histogram("part_seconds", "Time of the parts of a batch", _SECONDS, "part")
        self._batch_examples = self._histogram("batch_examples", "Examples of a batch", _EXAMPLES)
        self._keys = self._counter("keys", "Distinct keys whose rows were read")
        self._refreshes = self._counter("refreshes", "Looks for a newer record", "outcome")

    def note_request(self, status: int, seconds: float) -> None:
        """Counts an answered request."""
        self._requests.labels("http", str(status)).inc()
        self._request_seconds.labels("http").observe(seconds)

    def note_batch(self, scored: Scored, examples: int, waited: float) -> None:
        """Counts a batch, whose first request waited so many seconds."""
        self._wait_seconds.observe(waited)
        self._batch_examples.observe(examples)
        self._keys.inc(scored.distinct_keys)
        for part, seconds in scored.seconds.items():
            self._part_seconds.labels(part).observe(seconds)

    def note_refresh(self, outcome: str) -> None:
        """Counts a check for a newer record."""
        self._refreshes.labels(outcome).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"ctr_score_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"ctr_score_{name}", text, labels, buckets=buckets, registry=self.registry)
