"""10,000 bad requests: each is refused by a typed error, none changes a table, and the service still answers."""

import json
import socket
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight

from ctr_trainer.embedding.service import wire
from ctr_trainer.embedding.service.service import Service
from tests.service.conftest import CONFIG, LEASE, TIMEOUT, ones

pytestmark = pytest.mark.integration
_OPTIONS = flight.FlightCallOptions(timeout=TIMEOUT)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_NO_NUMBER = st.sampled_from([None, "x", [], {}, [1], "1.5", float("nan"), float("inf")])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(port, Flight client, store) of a service in this process, over a real socket; its one row has the key 5."""
    with Service("127.0.0.1", 0, tmp_path_factory.mktemp("fuzzed")) as service:
        service._store.create_table(CONFIG)
        service._store.sync("t", np.array([5]), ones(1), "w", 1)
        service._leases.take(LEASE)
        with flight.FlightClient(f"grpc://127.0.0.1:{service.port}") as client:
            yield service.port, client, service._store


@pytest.fixture
def unharmed(server):
    """Makes sure, after the test, that the table is as it was and that the service answers."""
    _, client, store = server
    rows, keys = store.tables["t"].stored.copy(), store.tables["t"].keys.copy()
    yield
    np.testing.assert_array_equal(store.tables["t"].stored, rows)
    np.testing.assert_array_equal(store.tables["t"].keys, keys)
    (answer,) = client.do_action(flight.Action("stats", b"{}"), _OPTIONS)
    assert json.loads(answer.body.to_pybytes())["tables"]["t"]["rows"] == 1


def _columns(count=1, width=3, values=None):
    keys = np.arange(5, 5 + count)
    return [keys, np.ones((count, width), np.float32) if values is None else np.array([values], np.float32)]


def _request(**changes):
    return dict(table="t", worker="w", sequence=2, lease=LEASE.token) | changes


def _body(request, columns=None):
    """Returns the bytes of a row request; `count` in the request replaces the number of columns' rows."""
    columns = columns or _columns()
    header = json.dumps({"count": len(columns[0]), **request}).encode()
    body = wire.pack(request, columns)
    start = wire.unpack_header(body)[1]
    parts, size = [struct.pack("<I", len(header)), header], 4 + len(header)
    return b"".join([*parts, bytes(-size % 64), body[start + -start % 64 :]])


_BAD_BODIES = st.one_of(
    st.binary(max_size=60),
    st.binary(max_size=60).map(lambda rest: struct.pack("<I", len(rest)) + rest),
    _ANYTHING.filter(lambda value: not isinstance(value, dict)).map(
        lambda value: struct.pack("<I", len(json.dumps(value))) + json.dumps(value).encode()
    ),
    st.sampled_from(["table", "worker", "sequence", "lease"]).map(
        lambda key: _body({k: v for k, v in _request().items() if k != key})
    ),
    st.one_of(
        st.fixed_dictionaries({"table": _ANYTHING.filter(lambda table: table != "t")}),
        st.fixed_dictionaries({"count": (_NO_NUMBER | st.integers()).filter(lambda count: count != 1)}),
        st.fixed_dictionaries({"sequence": _NO_NUMBER}),
        st.fixed_dictionaries({"lease": _ANYTHING}),
    ).map(lambda changes: _body(_request(**changes))),
)
_NOT_FINITE = st.sampled_from([np.nan, np.inf, -np.inf])
_BAD_COLUMNS = st.one_of(
    st.integers(1, 40).filter(lambda width: width != 3).map(lambda width: _columns(width=width)),
    st.sampled_from([np.float64, np.float16]).map(lambda kind: [np.array([5]), np.ones((1, 3), kind)]),
    st.tuples(_NOT_FINITE, st.integers(0, 2)).map(
        lambda bad: _columns(values=[bad[0] if i == bad[1] else 1.0 for i in range(3)])
    ),
    st.just([np.array([0]), _columns()[1]]),
    st.just([np.array([5])]),
    st.just([np.array([5]), np.array([0], np.uint32), _columns()[1]]),
)


_made = []


def _refused(call):
    """Makes a call that is to fail as a bad request, and not otherwise."""
    _made.append(1)
    with pytest.raises(pa.ArrowInvalid):
        call()


def _put(client, body):
    return list(client.do_action(flight.Action("put", body), _OPTIONS))


# Each example is a request, or several: 10,000 in all, of which these sizes make sure.
_MANY = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


@settings(_MANY, max_examples=500)
@given(st.lists(_BAD_BODIES, min_size=8, max_size=8))
def _fuzz_bodies(client, bodies):
    for body in bodies:
        _refused(lambda body=body: _put(client, body))


@settings(_MANY, max_examples=500)
@given(st.lists(_BAD_COLUMNS, min_size=4, max_size=4))
def _fuzz_columns(client, several):
    for columns in several:
        _refused(lambda columns=columns: _put(client, _body(_request(), columns)))


_ACTIONS = st.sampled_from(["hello", "create_table", "advance", "save", "restore"])
_BODIES = st.one_of(
    st.binary(max_size=60),
    st.dictionaries(st.sampled_from(["shard", "path", "files", "config"]), _NO_NUMBER).map(
        lambda body: json.dumps(body).encode()
    ),
)


@settings(_MANY, max_examples=500)
@given(
    st.lists(st.tuples(_ACTIONS | st.text(max_size=9).map(lambda name: f"x{name}"), _BODIES), min_size=4, max_size=4)
)
def _fuzz_actions(client, actions):
    for name, body in actions:
        _refused(lambda name=name, body=body: list(client.do_action(flight.Action(name, body), _OPTIONS)))


@pytest.mark.slow
def test_bad_requests_get_typed_errors_and_change_nothing(server, unharmed):
    _, client, _ = server
    _fuzz_bodies(client)
    _fuzz_columns(client)
    _fuzz_actions(client)
    assert len(_made) >= 8000


def test_random_bytes_on_the_socket_change_nothing(server, unharmed):
    port, rng = server[0], np.random.default_rng(0)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
    for number in range(2000):
        with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
            garbage = rng.bytes(int(rng.integers(1, 300)))
            # Every second one gets past the greeting, to the parser of HTTP/2 frames.
            connection.sendall(preface + garbage if number % 2 else garbage)


@pytest.mark.parametrize(("name", "most"), [("save", 2 << 20), ("restore", 16 << 20)])
def test_long_json_is_refused_before_it_is_read(server, name, most):
    with pytest.raises(pa.ArrowInvalid, match=f"{most + 1} bytes of JSON: expected at most {most}"):
        list(server[1].do_action(flight.Action(name, b" " * (most + 1)), _OPTIONS))
