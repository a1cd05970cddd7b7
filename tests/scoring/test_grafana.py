"""The queries of the Grafana dashboard, on a real Prometheus that scrapes a server, a stream and a service."""

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest

from ctr_trainer.embedding.service.service_metrics import ServiceMetrics
from ctr_trainer.live.stream import figures
from ctr_trainer.system.processes.child import ended_with_parent
from tests.docs.page import ROOT
from tests.ports import free_port
from tests.scoring.conftest import Client, running

DASHBOARD = json.loads((ROOT / "configs" / "grafana" / "ctr_trainer.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
# What only a cluster, or a model that is trained from a stream, has.
ABSENT = ("ctr_score_event_age_seconds", "ctr_score_row_cache_keys")
CONFIG = """
global: {scrape_interval: 250ms, scrape_timeout: 200ms}
scrape_configs: [{job_name: all, static_configs: [{targets: [%s]}]}]
"""


def test_a_panel_shows_each_metric_of_the_pages_but_for_details():
    pages = "".join(
        (ROOT / "docs" / name).read_text() for name in ("serving.md", "streaming.md", "embedding_service.md")
    )
    names = set(re.findall(r"`(ctr_(?:score|stream|service)_\w+)`", pages))
    shown = {name for name in names if any(name in query for query in QUERIES)}
    details = {"ctr_score_wait_seconds", "ctr_score_keys_total", "ctr_score_lag_records", "ctr_stream_event_seconds"}
    details |= {"ctr_score_generation", "ctr_score_epoch", "ctr_stream_new_key_share_in_training"}
    assert names - shown == details and len(shown) > 15


@pytest.mark.integration
@pytest.mark.slow
def test_each_query_of_the_dashboard_has_an_answer(publication, small_model, tmp_path):
    if not shutil.which("prometheus"):
        pytest.skip("no program prometheus: apt-get install prometheus")
    service = ServiceMetrics(lambda: {"tables": {"dim16": {"rows": 7, "bytes": 700}}})
    stream, port = figures.Figures(), free_port()
    stream.new_keys.shares, stream.new_keys.in_training = {"user": 0.1}, {"user": 0.2}
    with running(publication) as server, contextlib.ExitStack() as stack:
        client, endpoint = Client(server.port), figures.serve(stream, 0)
        stack.callback(client.close)
        stack.callback(endpoint.shutdown)
        ports = [server.port, endpoint.server_port, service.serve(0, "127.0.0.1")]
        (tmp_path / "prometheus.yml").write_text(CONFIG % ", ".join(f"'127.0.0.1:{each}'" for each in ports))
        command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=ended_with_parent())
        stack.callback(process.wait)
        stack.callback(process.kill)
        missing = [query for query in QUERIES if not any(name in query for name in ABSENT)]
        began = time.monotonic()
        while missing:
            assert process.poll() is None and time.monotonic() < began + 120, missing
            stream.records += 10
            with service.measure("pull", "dim16", 5, "rank0"), contextlib.suppress(ZeroDivisionError):
                with service.measure("sync", "dim16", 5):
                    raise ZeroDivisionError
            assert client.predict(instances=small_model.instances[:20])[0] == 200
            time.sleep(0.1)
            missing = [query for query in missing if not _answers(port, query)]


def _answers(port, query):
    """Returns whether Prometheus answers a query with finite numbers; a query that it refuses raises HTTPError."""
    text = urllib.parse.urlencode({"query": query.replace("$__rate_interval", "20s")})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{text}") as answer:
            found = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        if error.code == 503:  # It starts.
            return False
        raise AssertionError(f"{query}: {error.read()}") from error
    except OSError:
        return False
    return bool(found) and all(np.isfinite(float(each["value"][1])) for each in found)
