"""10,000 bad requests: each is refused by a typed error, none changes a table, and the service still answers."""

import json
import socket

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight

from ctr_trainer.embedding import snapshot
from ctr_trainer.embedding.service import Service
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
        service._store.push("t", np.array([5]), ones(1), "w", 1)
        service._leases.take(LEASE)
        with flight.FlightClient(f"grpc://127.0.0.1:{service.port}") as client:
            yield service.port, client, service._store


@pytest.fixture
def unharmed(server):
    """Makes sure, after the test, that the table is as it was and that the service answers."""
    _, client, store = server
    rows, keys = store.tables["t"].rows.copy(), store.tables["t"].keys.copy()
    yield
    np.testing.assert_array_equal(store.tables["t"].rows, rows)
    np.testing.assert_array_equal(store.tables["t"].keys, keys)
    (answer,) = client.do_action(flight.Action("stats", b"{}"), _OPTIONS)
    assert json.loads(answer.body.to_pybytes())["tables"]["t"]["rows"] == 1


def _batch(keys, width=3, key_type=None, row_type=None, values=None, names=("key", "row")):
    flat = pa.array(np.ones(len(keys) * width) if values is None else values, row_type or pa.float32())
    field = pa.field("item", flat.type, nullable=False)
    rows = pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(field, width))
    return pa.RecordBatch.from_arrays([pa.array(keys, key_type or pa.int64()), rows], names=list(names))


def _good_batch():
    return _batch([5])


def _good_command(**changes):
    return dict(op="push", table="t", worker="w", sequence=2, count=1, lease=LEASE.token) | changes


_BAD_COMMANDS = st.one_of(
    st.binary(max_size=60),
    _ANYTHING.filter(lambda value: not isinstance(value, dict)).map(lambda value: json.dumps(value).encode()),
    st.sampled_from(["op", "table", "worker", "sequence", "count"]).map(
        lambda key: json.dumps({k: v for k, v in _good_command().items() if k != key}).encode()
    ),
    st.one_of(
        st.fixed_dictionaries({"op": _ANYTHING.filter(lambda op: op not in ("push",))}),
        st.fixed_dictionaries({"table": _ANYTHING.filter(lambda table: table != "t")}),
        st.fixed_dictionaries({"count": (_NO_NUMBER | st.integers()).filter(lambda count: count != 1)}),
        st.fixed_dictionaries({"sequence": _NO_NUMBER}),
    ).map(lambda changes: json.dumps(_good_command(**changes)).encode()),
)
_NOT_FINITE = st.sampled_from([np.nan, np.inf, -np.inf])
_BAD_BATCHES = st.one_of(
    st.integers(1, 40).filter(lambda width: width != 3).map(lambda width: _batch([5], width)),
    st.sampled_from([pa.int32(), pa.uint64(), pa.float64(), pa.int8()]).map(lambda kind: _batch([5], key_type=kind)),
    st.sampled_from([pa.float64(), pa.int32(), pa.float16()]).map(lambda kind: _batch([5], row_type=kind)),
    st.lists(st.text(max_size=4), min_size=2, max_size=2)
    .filter(lambda names: names != ["key", "row"])
    .map(lambda names: _batch([5], names=names)),
    st.tuples(_NOT_FINITE, st.integers(0, 2)).map(
        lambda bad: _batch([5], values=[bad[0] if i == bad[1] else 1.0 for i in range(3)])
    ),
    st.just(_batch([0])),
    st.just(_batch([None])),
    st.lists(st.integers(1, 9), max_size=20).filter(lambda keys: len(keys) != 1).map(_batch),
)


_made = []


def _refused(call):
    """Makes a call that is to fail as a bad request, and not otherwise."""
    _made.append(1)
    with pytest.raises(pa.ArrowInvalid):
        call()


def _exchange(client, command, batch):
    descriptor = flight.FlightDescriptor.for_command(command)
    writer, reader = client.do_exchange(descriptor, _OPTIONS)
    with writer:
        try:
            writer.begin(batch.schema)
            writer.write_batch(batch)
            writer.done_writing()
        except pa.ArrowException:
            pass  # Refused before all was read; why, is in the answer.
        reader.read_all()


# Each example is a request, or several: 10,000 in all, of which these sizes make sure.
_MANY = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


@settings(_MANY, max_examples=500)
@given(st.lists(_BAD_COMMANDS, min_size=8, max_size=8))
def _fuzz_commands(client, commands):
    for command in commands:
        _refused(lambda command=command: _exchange(client, command, _good_batch()))


@settings(_MANY, max_examples=500)
@given(st.lists(_BAD_BATCHES, min_size=4, max_size=4))
def _fuzz_batches(client, batches):
    for batch in batches:
        _refused(lambda batch=batch: _exchange(client, json.dumps(_good_command()).encode(), batch))


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
    _fuzz_commands(client)
    _fuzz_batches(client)
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


def test_a_row_can_still_be_pushed_after_all(server):
    _, client, store = server
    before = store.tables["t"].rows.copy()
    _exchange(client, json.dumps(_good_command()).encode(), _good_batch())
    np.testing.assert_array_equal(store.tables["t"].rows, before + 1)
    assert snapshot.config_to_json(store.tables["t"].config) == snapshot.config_to_json(CONFIG)
