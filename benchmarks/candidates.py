"""Measures requests of one context with many candidates against the same examples as expanded rows.

    python benchmarks/candidates.py                  # 200 candidates, 20 of 26 features in the context; about 1 minute

A process serves a DeepFM of 26 features of 16 floats. Requests of both forms alternate, over HTTP and over Flight. The
figures are ratios of medians: of the time that a client waits, and of the CPU time that the server takes.
"""

import argparse
import contextlib
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
import sides  # noqa: F401, since it makes `tests` importable
from pyarrow import flight

import ctr_trainer as ctr
from ctr_trainer.data.convert import convert
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.models import deepfm
from ctr_trainer.models.params import ModelParams
from tests.constant import CONSTANT
from tests.scoring import trained
from tests.scoring.conftest import Client
from tests.scoring.process import serving

FEATURES, SHARED, ROWS = 26, 20, 20_000
Ask = Callable[[], np.ndarray]


def publication(work: pathlib.Path, seed: int) -> tuple[pathlib.Path, list[dict[str, str]]]:
    """Trains a model on random rows. Returns the path of its publication, and some of the rows."""
    draw = np.random.default_rng(seed)
    names = [f"C{number + 1}" for number in range(FEATURES)]
    values = draw.zipf(1.2, (ROWS, FEATURES)) % (1 << 16)
    lines = [
        f"{label},{','.join(f'{value:08x}' for value in row)}"
        for label, row in zip(draw.integers(0, 2, ROWS), values, strict=True)
    ]
    (work / "rows.csv").write_text("\n".join([",".join(["label", *names]), *lines]) + "\n")
    sparse = [{"name": name, "column": name, "dim": 16} for name in names]
    spec = FeatureSpec.from_dict(
        {"name": "made", "label": {"column": "label"}, "csv": {"header": True}, "sparse": sparse}
    )
    convert("csv", work / "rows.csv", work / "data", spec, progress=False)
    ctr.init()
    params = ModelParams(TrainOp("adagrad", 0.1, 0.3, **CONSTANT))
    estimator = ctr.Estimator(deepfm.model_fn, work / "model", params, ctr.RunConfig(threads=1))
    estimator.train(lambda: BatchReader(work / "data", 512, epochs=1))
    trained.publish(work / "published", estimator, estimator.latest_checkpoint())
    return work / "published", [
        dict(zip(names, (f"{value:08x}" for value in row), strict=True)) for row in values.tolist()
    ]


def asks_of_http(client: Client, context: dict, candidates: list[dict]) -> tuple[Ask, Ask]:
    """Returns functions that ask for the scores of the expanded rows, and of the context with its candidates."""

    def asking(body: dict) -> Ask:
        encoded = json.dumps(body).encode()

        def ask() -> np.ndarray:
            status, answer, _ = client.ask(f"/v1/models/{trained.NAME}:predict", encoded)
            assert status == 200, answer
            return np.array([each["probabilities"] for each in answer["predictions"]])

        return ask

    expanded = [{**context, **each} for each in candidates]
    return asking({"instances": expanded}), asking({"context": context, "candidates": candidates})


def asks_of_flight(
    client: flight.FlightClient, context: dict, candidates: list[dict], closing: contextlib.ExitStack
) -> tuple[Ask, Ask]:
    """Returns what `asks_of_http` returns, each with a stream of its own."""

    def asking(rows: list[dict], metadata: bytes | None) -> Ask:
        batch = pa.RecordBatch.from_pylist(rows)
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(trained.NAME))
        closing.enter_context(writer)
        writer.begin(batch.schema)

        def ask() -> np.ndarray:
            if metadata is None:
                writer.write_batch(batch)
            else:
                writer.write_with_metadata(batch, metadata)
            return reader.read_chunk().data["probabilities"].to_numpy()

        return ask

    expanded = [{**context, **each} for each in candidates]
    return asking(expanded, None), asking(candidates, json.dumps({"context": context}).encode())


def compare(expanded: Ask, ranked: Ask, process: psutil.Process, rounds: int, requests: int) -> tuple[float, float]:
    """Returns by how much the ranking form is faster: in the time of the client, and in the server's CPU time."""
    np.testing.assert_allclose(ranked(), expanded(), atol=1e-6, rtol=0)
    found: dict[Ask, list[tuple[float, float]]] = {expanded: [], ranked: []}
    for _ in range(rounds):
        for ask, seconds in found.items():
            waits, before = [], process.cpu_times()
            for _ in range(requests):
                began = time.perf_counter()
                ask()
                waits.append(time.perf_counter() - began)
            after = process.cpu_times()
            cpu = after.user + after.system - before.user - before.system
            seconds.append((statistics.median(waits), cpu / requests))
    slow, fast = ([statistics.median(column) for column in zip(*each, strict=True)] for each in found.values())
    print(f"expanded: {1000 * slow[0]:.2f} ms, CPU of the server {1000 * slow[1]:.2f} ms; ", end="")
    print(f"context: {1000 * fast[0]:.2f} ms, {1000 * fast[1]:.2f} ms", flush=True)
    return slow[0] / fast[0], slow[1] / fast[1]


def measure(candidates: int = 200, rounds: int = 5, requests: int = 60, seed: int = 0) -> dict[str, Any]:
    """Returns the keys of the last line; `candidates_speedup` is the lesser of HTTP's and Flight's."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        work = pathlib.Path(directory)
        path, rows = publication(work, seed)
        shared = list(rows[0])[:SHARED]
        context = {name: rows[0][name] for name in shared}
        offered = [{name: value for name, value in row.items() if name not in context} for row in rows[:candidates]]
        server = stack.enter_context(serving(path, work / "score.log", "--timeout_secs=60"))
        process = psutil.Process(server.process.pid)
        over_http = asks_of_http(stack.enter_context(contextlib.closing(Client(server.port))), context, offered)
        client = stack.enter_context(flight.connect(f"grpc://127.0.0.1:{server.flight_port}"))
        over_flight = asks_of_flight(client, context, offered, stack)
        for name, asks in (("http", over_http), ("flight", over_flight)):
            print(f"{name}: ", end="")
            waited, used = compare(*asks, process, rounds, requests)
            found |= {f"candidates_speedup_{name}": round(waited, 2), f"candidates_speedup_{name}_cpu": round(used, 2)}
    least = min(found["candidates_speedup_http"], found["candidates_speedup_flight"])
    return {"candidates_speedup": least, **found, "candidates": candidates}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=200, help="candidates of a request")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which the two forms alternate")
    parser.add_argument("--requests", type=int, default=60, help="requests of each form in a round")
    given = parser.parse_args()
    print(json.dumps(measure(given.candidates, given.rounds, given.requests)))
