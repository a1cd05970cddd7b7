"""A scoring server that gets more requests than it can answer in time."""

import concurrent.futures
import contextlib
import threading
import types

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from ctr_trainer.live.publication.places import open_reader
from ctr_trainer.live.publication.raw_inputs import NUMBER, RawFeature, RawInputs
from ctr_trainer.live.scoring import batcher as batcher_module
from ctr_trainer.live.scoring.batcher import Batcher
from ctr_trainer.live.scoring.examples import Examples
from ctr_trainer.live.scoring.refusals import RequestRefused
from ctr_trainer.live.scoring.served_model import Freshness, Scored
from ctr_trainer.settings.command_flags import ScoreLimits
from tests.scoring.conftest import Client, Slow, exchanged, running

_SECONDS = 60
_EXAMPLES = Examples(RawInputs((RawFeature("price", NUMBER),), frozenset()), 1, {"price": np.zeros(1, np.float32)})


def _scored(examples):
    return Scored({"p": np.zeros(examples.count)}, Freshness(1, 0, 0, 0.0), {})


def test_a_request_is_refused_once_the_open_ones_take_half_of_the_timeout(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(batcher_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    batcher = Batcher(_scored, ScoreLimits(timeout_secs=1.0))
    for _ in range(3):
        with batcher.answering(_EXAMPLES) as future:
            future.result(_SECONDS)
            now[0] += 0.1
        now[0] += 100.0  # Time without open requests does not count.
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            batcher.refuse_late()
            stack.enter_context(batcher.answering(_EXAMPLES))
        stack.enter_context(batcher.answering(_EXAMPLES))
        with pytest.raises(RequestRefused, match=r"the answer would take 1\.2 s, over 1 s \(timeout_secs\)"):
            batcher.refuse_late()
    batcher.refuse_late()
    batcher.close()


def test_what_would_be_answered_too_late_gets_429_by_http_and_flight(publication, small_model):
    goes_on, began = threading.Event(), threading.Event()
    slow = dict(reader=lambda url: Slow(open_reader(url), goes_on, began), limits=ScoreLimits(timeout_secs=_SECONDS))
    batch = pa.RecordBatch.from_pylist(small_model.instances[:1])
    with (
        running(publication, flight_port=0, **slow) as server,
        concurrent.futures.ThreadPoolExecutor(1) as threads,
        contextlib.closing(Client(server.port)) as client,
        contextlib.closing(Client(server.port)) as other,
    ):
        server._batcher._seconds, server._batcher._answered = 100.0 * _SECONDS, 17.0
        first = threads.submit(client.predict, instances=small_model.instances[:1])
        try:
            assert began.wait(_SECONDS)
            status, answer, headers = other.predict(instances=small_model.instances[:1])
            assert status == 429 and headers["Retry-After"] == "1" and "the answer would take" in answer["error"]
            assert other.ask("/healthz")[0] == 200
            with pytest.raises(flight.FlightUnavailableError, match="the answer would take"):
                exchanged(server, batch)
        finally:
            goes_on.set()
        assert first.result(_SECONDS)[0] == 200
        assert other.predict(instances=small_model.instances[:1])[0] == 200
        assert exchanged(server, batch).num_rows == 1
        assert other.figures()['ctr_score_requests_total{status="429",transport="http"}'] == 1
