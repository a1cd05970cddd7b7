import contextlib
import http.client
import json
import threading

import numpy as np
import pyarrow as pa
import pytest

from ctr_trainer.live.publication.places import open_reader
from ctr_trainer.live.scoring.request_forms import ARROW
from ctr_trainer.live.scoring.server import ScoreServer
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.command_flags import ScoreFlags, ScoreLimits
from tests.scoring import trained

_SECONDS = 60


class Client:
    """A client of one server, with a connection of its own."""

    def __init__(self, port, headers=()):
        self.port, self._headers = port, dict(headers)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)

    def ask(self, path, body=None, headers=()):
        """Sends a GET, or a POST of bytes or JSON; returns (status, JSON, table or text, headers)."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request("GET" if body is None else "POST", path, data, {**self._headers, **dict(headers)})
        response = self._connection.getresponse()
        content, kind = response.read(), response.headers["content-type"]
        if kind == ARROW:
            return response.status, pa.ipc.open_stream(content).read_all(), response.headers
        answer = json.loads(content) if kind == "application/json" else content.decode()
        return response.status, answer, response.headers

    def predict(self, **body):
        """Requests predictions; returns the same as `ask`."""
        return self.ask(f"/v1/models/{trained.NAME}:predict", body)

    def figures(self):
        """Returns the figures of /metrics, by name."""
        lines = self.ask("/metrics")[1].splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def close(self):
        self._connection.close()


def probabilities(answer):
    """Returns the probabilities of an answer in row format."""
    return np.array([each["probabilities"] for each in answer["predictions"]], np.float32)


def exchanged(client, rows, name=trained.NAME, context=None, options=None):
    """Returns the (status, answer, headers) to a table or batch of Arrow, of one context if that is given."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if context is not None:
        table = table.replace_schema_metadata({"context": json.dumps(context)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    body = sink.getvalue().to_pybytes()
    return client.ask(f"/v1/models/{name}:predict", body, {"Content-Type": ARROW})


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    distributed.init()
    return trained.train(tmp_path_factory.mktemp("scored"))


@pytest.fixture(scope="session")
def publication(small_model, tmp_path_factory):
    """The path of a publication of the first checkpoint, which tests must not change."""
    url = tmp_path_factory.mktemp("publication")
    trained.Publishing(url, small_model).publish(0)
    return url


def _has_loaded(port):
    # A server that loads its model may find that a connection was silent for too long.
    with contextlib.closing(Client(port)) as client, contextlib.suppress(http.client.RemoteDisconnected):
        return client.ask("/healthz")[0] == 200


@contextlib.contextmanager
def running(url, wait=True, reader=open_reader, **flags):
    """Runs a `ScoreServer` in a thread of this process until the end of the block."""
    limits = ScoreLimits(timeout_secs=_SECONDS)
    settings = (
        dict(model=str(url), bind="127.0.0.1:0", refresh_secs=0.05, start_timeout=_SECONDS, limits=limits) | flags
    )
    server = ScoreServer(ScoreFlags(**settings), lambda: reader(str(url)))
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        if wait:
            until(lambda: _has_loaded(server.port), "the model to be loaded")
        yield server
    finally:
        server.stop()
        thread.join(_SECONDS)
        assert not thread.is_alive()


class BeforeReads:
    """A reader that calls `act()` before each read. Its reads may wait, as those of a cluster."""

    is_local = False

    def __init__(self, reader, act):
        self._reader, self._act = reader, act

    def __getattr__(self, name):
        return getattr(self._reader, name)

    def read(self, table, keys):
        self._act()
        return self._reader.read(table, keys)


def waiting_reader(reader, goes_on, began):
    """Returns a reader whose reads say that they began, then wait for `goes_on`."""

    def wait():
        began.set()
        assert goes_on.wait(_SECONDS)

    return BeforeReads(reader, wait)


def until(is_so, what):
    """Waits until a condition holds."""
    done = threading.Event()
    for _ in range(_SECONDS * 20):
        if is_so():
            return
        done.wait(0.05)
    raise AssertionError(f"waited {_SECONDS} s for {what}")


@pytest.fixture(scope="module")
def server(publication):
    with running(publication) as server:
        yield server


@pytest.fixture
def client(server):
    with contextlib.closing(Client(server.port)) as client:
        yield client
