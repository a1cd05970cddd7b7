"""The part `candidates` of `click_to_score.py`: requests of one context with many candidates, and the same as rows.

A process serves a DeepFM with 26 features of 16 floats each, of which 20 are in the context. Requests of both forms
alternate, over HTTP and over Flight. The figures are ratios of medians: of the client's waiting time, and of the
server's CPU time.
"""

import contextlib
import functools
import itertools
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import sides
from pyarrow import flight

from tests.scoring.conftest import Client, probabilities
from tests.scoring.process import serving

FEATURES, SHARED, ROWS, NAME = 26, 20, 20_000, "candidates"
ROUNDS, REQUESTS = 5, 60  # Rounds in which the two forms alternate, and requests of each form in a round.
SPEC = """
name = "made"
label = {column = "label"}
sparse = [{columns = ["C1..C26"], dim = 16}]
"""
Ask = Callable[[], np.ndarray]


def publication(work: pathlib.Path) -> tuple[pathlib.Path, list[dict[str, str]]]:
    """Trains a model on random rows, and returns the path of its publication and some of the rows."""
    draw = np.random.default_rng(0)
    names = [f"C{number + 1}" for number in range(FEATURES)]
    values = [[f"{value:08x}" for value in row] for row in (draw.zipf(1.2, (ROWS, FEATURES)) % (1 << 16)).tolist()]
    rows = [dict(zip(names, row, strict=True)) for row in values]
    labels = draw.integers(0, 2, ROWS)
    table = pa.Table.from_pylist(rows).append_column("label", pa.array(labels))
    pq.write_table(table, work / "rows.parquet")
    (work / "spec.toml").write_text(SPEC)
    paths = f"--train_data={work / 'rows.parquet'}", f"--feature_spec={work / 'spec.toml'}"
    published = work / "published"
    sides.trained([*sides.COMMAND, "train", *paths, "--model=deepfm", "--recipe=none", f"--publish={published}"])
    return published, rows


def ask_http(client: Client, body: bytes) -> np.ndarray:
    """Returns the probabilities in the server's response to an HTTP request."""
    status, answer, _ = client.ask(f"/v1/models/{NAME}:predict", body)
    assert status == 200, answer
    return probabilities(answer)


def ask_flight(
    writer: flight.FlightStreamWriter, reader: flight.FlightStreamReader, batch: pa.RecordBatch, metadata: bytes
) -> np.ndarray:
    """Returns the probabilities in the server's response on a Flight stream of record batches."""
    if metadata:
        writer.write_with_metadata(batch, metadata)
    else:
        writer.write_batch(batch)
    return reader.read_chunk().data["probabilities"].to_numpy()


def compare(expanded: Ask, ranked: Ask, process: psutil.Process) -> tuple[float, float]:
    """Returns the speed-ups of the ranking form: in the client's waiting time, and in the server's CPU time."""
    np.testing.assert_allclose(ranked(), expanded(), atol=1e-6, rtol=0)
    rows: list[list[float]] = []
    for _ in range(ROUNDS):
        rows.append([])
        for ask in (expanded, ranked):
            waits, before = [], sum(process.cpu_times()[:2])
            for _ in range(REQUESTS):
                began = time.perf_counter()
                ask()
                waits.append(time.perf_counter() - began)
            rows[-1] += [statistics.median(waits), (sum(process.cpu_times()[:2]) - before) / REQUESTS]
    wait, cpu, fast_wait, fast_cpu = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"expanded: {1000 * wait:.2f} ms, CPU of the server {1000 * cpu:.2f} ms; ", end="")
    print(f"context: {1000 * fast_wait:.2f} ms, {1000 * fast_cpu:.2f} ms", flush=True)
    return wait / fast_wait, cpu / fast_cpu


def measure(candidates: int = 200) -> dict[str, Any]:
    """Returns the figures by key; `candidates_speedup` is the lower one of HTTP and Flight."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        work = pathlib.Path(directory)
        path, rows = publication(work)
        context = dict(itertools.islice(rows[0].items(), SHARED))
        offered = [{name: value for name, value in row.items() if name not in context} for row in rows[:candidates]]
        expanded = [{**context, **each} for each in offered]
        server = stack.enter_context(serving(path, work / "score.log", f"--name={NAME}", "--timeout_secs=60"))
        http = stack.enter_context(contextlib.closing(Client(server.port)))
        client = stack.enter_context(flight.connect(f"grpc://127.0.0.1:{server.flight_port}"))
        bodies = {"instances": expanded}, {"context": context, "candidates": offered}
        asks: dict[str, list[Ask]] = {"http": [], "flight": []}
        for body in bodies:
            asks["http"].append(functools.partial(ask_http, http, json.dumps(body).encode()))
        for records, metadata in ((expanded, b""), (offered, json.dumps({"context": context}).encode())):
            batch = pa.RecordBatch.from_pylist(records)
            writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(NAME))
            stack.enter_context(writer).begin(batch.schema)
            asks["flight"].append(functools.partial(ask_flight, writer, reader, batch, metadata))
        for name, (of_rows, of_context) in asks.items():
            print(f"{name}: ", end="")
            waited, used = compare(of_rows, of_context, psutil.Process(server.process.pid))
            found |= {f"candidates_speedup_{name}": round(waited, 2), f"candidates_speedup_{name}_cpu": round(used, 2)}
    least = min(found["candidates_speedup_http"], found["candidates_speedup_flight"])
    return {"candidates_speedup": least, **found, "candidates": candidates}
