"""The figures of a scoring server, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_EXAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ScoreMetrics:
    """Counts, durations and what is served.

    | metric | labels | what |
    |---|---|---|
    | `ctr_score_requests_total` | transport, status | requests answered; the status is HTTP's |
    | `ctr_score_request_seconds` | transport | histogram from the request's last byte to its answer |
    | `ctr_score_wait_seconds` | | histogram of how long the first request of a batch waited |
    | `ctr_score_part_seconds` | part | histogram of a batch's `keys`, `rows` and `tower` |
    | `ctr_score_batch_examples` | | histogram of the examples of a batch |
    | `ctr_score_keys_total` | | distinct keys whose rows were read |
    | `ctr_score_refreshes_total` | outcome | looks for a newer record: `newer`, `none`, `refused`, `failed` |
    | `ctr_score_waiting_examples` | | examples that wait now |
    | `ctr_score_generation`, `ctr_score_epoch`, `ctr_score_global_step` | | what is served; none until it is loaded |
    | `ctr_score_age_seconds` | | since its rows were taken from the training |
    | `ctr_score_row_cache_keys_total` | found | keys looked up in the cache of a cluster's hot rows: `yes`, `no` |

    Args:
      now: f() -> dict of what is now: metric without `ctr_score_` -> (help, number).
      cached: f() -> (keys looked up in the cache of rows, keys found there).
    """

    def __init__(self, now, cached):
        self._now, self._cached = now, cached
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests answered", "transport", "status")
        self._request_seconds = self._histogram("request_seconds", "Time of a request", _SECONDS, "transport")
        self._wait_seconds = self._histogram("wait_seconds", "Wait of a batch's first request", _SECONDS)
        self._part_seconds = self._histogram("part_seconds", "Time of the parts of a batch", _SECONDS, "part")
        self._batch_examples = self._histogram("batch_examples", "Examples of a batch", _EXAMPLES)
        self._keys = self._counter("keys", "Distinct keys whose rows were read")
        self._refreshes = self._counter("refreshes", "Looks for a newer record", "outcome")
        self._registry.register(self)

    def note_request(self, transport, status, seconds):
        """Counts one request that was answered."""
        self._requests.labels(transport, str(status)).inc()
        self._request_seconds.labels(transport).observe(seconds)

    def note_batch(self, scored, examples, waited):
        """Counts one batch; see `Batcher`."""
        self._wait_seconds.observe(waited)
        self._batch_examples.observe(examples)
        self._keys.inc(scored.distinct_keys)
        for part, seconds in scored.seconds.items():
            self._part_seconds.labels(part).observe(seconds)

    def note_refresh(self, outcome):
        """Counts one look for a newer record."""
        self._refreshes.labels(outcome).inc()

    def collect(self):
        """Yields what others count, read when Prometheus asks."""
        for name, (text, value) in self._now().items():
            yield GaugeMetricFamily(f"ctr_score_{name}", text, value=value)

        lookups, hits = self._cached()
        found = CounterMetricFamily("ctr_score_row_cache_keys", "Keys looked up in the cache of rows", labels=["found"])
        found.add_metric(["yes"], hits)
        found.add_metric(["no"], lookups - hits)
        yield found

    def text(self):
        """-> bytes of all figures in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name, text, *labels):
        return Counter(f"ctr_score_{name}", text, labels, registry=self._registry)

    def _histogram(self, name, text, buckets, *labels):
        return Histogram(f"ctr_score_{name}", text, labels, buckets=buckets, registry=self._registry)
