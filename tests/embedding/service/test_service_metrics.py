import contextlib
import socket
import urllib.request

import pytest

from ctr_trainer.embedding.service import service_metrics
from ctr_trainer.embedding.service.service_metrics import ServiceMetrics
from ctr_trainer.system.messages.errors import UserError


def _scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_prometheus_sees_requests_rows_durations_tables_and_sync_ages():
    metrics = ServiceMetrics(lambda: {"tables": {"dim16": {"rows": 7, "bytes": 700}}})
    with metrics.measure("pull", "dim16", 5):
        pass
    with metrics.measure("sync", "dim16", 3, "rank0"):
        pass
    with pytest.raises(ZeroDivisionError), metrics.measure("sync", "dim16", 2, "rank1"):
        raise ZeroDivisionError
    seen = _scrape(metrics.serve(0, "127.0.0.1"))
    labels = 'operation="{}",table="dim16"'
    assert seen["ctr_service_requests_total{" + labels.format("pull") + "}"] == "1.0"
    assert seen["ctr_service_rows_total{" + labels.format("pull") + "}"] == "5.0"
    assert seen["ctr_service_requests_total{" + labels.format("sync") + "}"] == "1.0"
    assert seen["ctr_service_failures_total{" + labels.format("sync") + "}"] == "1.0"
    assert seen['ctr_service_request_seconds_count{operation="sync"}'] == "1.0"
    assert seen['ctr_service_table_rows{table="dim16"}'] == "7.0"
    assert seen['ctr_service_table_bytes{table="dim16"}'] == "700.0"
    assert 0 <= float(seen['ctr_service_sync_age_seconds{worker="rank0"}']) < 60
    assert 'ctr_service_sync_age_seconds{worker="rank1"}' not in seen


def test_a_restarted_worker_keeps_its_label_and_only_the_latest_have_one():
    metrics = ServiceMetrics(lambda: {"tables": {}})
    workers = [f"rank0-{start:032x}" for start in range(3)] + [f"job{job}" for job in range(4096)]
    for worker in workers:
        with metrics.measure("put", "dim16", 1, worker):
            pass
    labels = [sample.labels["worker"] for gauge in metrics.collect() for sample in gauge.samples]
    assert labels == [f"job{job}" for job in range(4096)]
    with metrics.measure("put", "dim16", 1, workers[0]):
        pass
    labels = [sample.labels["worker"] for gauge in metrics.collect() for sample in gauge.samples]
    assert labels == [f"job{job}" for job in range(1, 4096)] + ["rank0"]


def test_reads_and_pushes_go_to_their_line_of_the_log():
    metrics = ServiceMetrics(lambda: {"tables": {}})
    for operation in ("pull", "pull", "put"):
        with metrics.measure(operation, "dim16", 1):
            pass
    for counts in ((2, 1), (0, 0)):  # The second call finds nothing new.
        lookups, pushes = metrics.status_lines()
        assert lookups.startswith(f"[RunStatus]: PsEmbeddingLookup statistics => count: {counts[0]}  P50: ")
        assert pushes.startswith(f"[RunStatus]: PsPushGrad statistics => count: {counts[1]}  P50: ")
    assert [latency.percentiles()["count"] for latency in metrics.latencies] == [2, 1]


def test_a_silent_client_is_cut_off_and_keeps_nobody_out(monkeypatch):
    monkeypatch.setattr(service_metrics, "_SILENT_SECONDS", 1.0)
    port = ServiceMetrics(lambda: {"tables": {"dim16": {"rows": 7, "bytes": 700}}}).serve(0, "127.0.0.1")
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), 60)) as silent:
        assert _scrape(port)
        assert silent.recv(1) == b""


def test_a_taken_port_is_named():
    first, second = (ServiceMetrics(lambda: {"tables": {}}) for _ in range(2))
    port = first.serve(0, "127.0.0.1")
    with pytest.raises(UserError, match=f"metrics_port={port}"):
        second.serve(port, "127.0.0.1")
