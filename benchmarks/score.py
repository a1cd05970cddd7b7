"""Measures a scoring server on one core: requests per CPU second, their waiting time, and the gain of `context`.

    python benchmarks/score.py
    python benchmarks/score.py --demo=/tmp/score --rounds=5

The process `score` serves the demo's model (26 texts and 13 numbers) on the first core; the load generator runs on the
last one. Each connection sends a request once the previous one is answered, except in the open loop: there, requests
are due at a fixed rate, and wait from then on. The last line is JSON, with medians over the rounds:

    requests_per_core_sec      requests of one example per CPU second of the server, at its best concurrency
    requests_128_per_core_sec  the same with 128 examples in a request
    p99_ms_at_60_percent       99th percentile of the waiting time at 60% of requests_per_core_sec, open loop
    candidates_speedup         200 candidates of one user as `context`: CPU time of the server, expanded rows over it
    generator_cores            most of a core that the generator used; above 0.9, the generator limits the figures
"""

import itertools
import json
import os
import pathlib
import select
import socket
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import psutil
import sides

from tests.scoring.process import Server, serving

NAME, SHARED, CANDIDATES, CONNECTIONS = "demo", 20, 200, (1, 4, 16, 64)
LOADS = {"1 example": 4, "128 examples": 3}  # The number of `CONNECTIONS`, of which the other loads have one.
PER_CORE, OPEN = "requests_per_core_sec", "60%, open loop"
COLUMNS = [("load", "load", ""), ("connections", "connections", ""), ("requests/s", "rate", ",.0f")]
COLUMNS += [("requests per CPU second", PER_CORE, ",.0f"), ("p50 ms", "p50", ".2f"), ("p99 ms", "p99", ".2f")]
COLUMN_NAMES = [*(f"I{n + 1}" for n in range(13)), *(f"C{n + 1}" for n in range(26))]


def published(demo: pathlib.Path) -> list[dict[str, Any]]:
    """Makes the demo's data and publication unless they are there, and returns rows of the data."""
    if not (demo / "done").exists():
        sides.make_synthetic(demo / "data")
        flags = f"--train_data={demo / 'data/train'}", f"--eval_data={demo / 'data/test'}", f"--publish={demo / NAME}"
        sides.trained([*sides.COMMAND, "train", sides.DEMO, *flags])
        (demo / "done").touch()
    lines = [zip(COLUMN_NAMES, line.split("\t")[1:], strict=True) for line in open(demo / "data/sample.tsv")]
    return [{k: v.strip() if k[0] == "C" else float(v) if v else None for k, v in line} for line in lines]


def requests_of(bodies: list[dict[str, Any]]) -> list[bytes]:
    """Returns the bytes of requests."""
    head = f"POST /v1/models/{NAME}:predict HTTP/1.1\r\nHost: localhost\r\n"
    texts = [json.dumps(body).encode() for body in bodies]
    return [f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text for text in texts]


def loaded(server: Server, requests: list[bytes], connections: int, seconds: float, rate: float = 0) -> dict[str, Any]:
    """Sends requests for some seconds, in a closed loop or at a rate, and returns the figures of the load."""
    process, count = psutil.Process(server.process.pid), 0
    idle = [socket.create_connection(("127.0.0.1", server.port), 60) for _ in range(connections)]
    found, due, waits, following = dict.fromkeys(idle, b""), dict.fromkeys(idle, 0.0), [], itertools.cycle(requests)
    used, own, began = sum(process.cpu_times()[:2]), time.process_time(), time.perf_counter()
    now = began
    while now < began + seconds or len(idle) < connections:
        while idle and now < began + seconds and (not rate or began + count / rate <= now):
            one = idle.pop()
            due[one] = began + count / rate if rate else now
            one.sendall(next(following))
            count += 1
        wait = max(began + count / rate - time.perf_counter(), 0) if rate and idle else 1.0
        for one in select.select([*found], [], [], min(wait, 1.0))[0]:
            found[one] += one.recv(1 << 18)
            head, end, body = found[one].partition(b"\r\n\r\n")
            if not end or len(body) < int(head.rpartition(b"content-length: ")[2].partition(b"\r")[0]):
                continue
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"the server answers {head!r} {body!r}")
            waits.append(time.perf_counter() - due[one])
            found[one] = b""
            idle.append(one)
        now = time.perf_counter()
    used, own = sum(process.cpu_times()[:2]) - used, time.process_time() - own
    for one in found:
        one.close()
    p50, p99 = np.percentile(waits, (50, 99)) * 1000
    figures = {"connections": connections, "rate": count / (now - began), PER_CORE: count / used}
    return {**figures, "p50": float(p50), "p99": float(p99), "generator_cores": own / (now - began)}


def measure(server: Server, rows: list[dict[str, Any]], seconds: float) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the figures of one round, by load and connections."""
    context = {name: rows[0][name] for name in COLUMN_NAMES[-SHARED:]}
    offered = [{name: value for name, value in row.items() if name not in context} for row in rows[:CANDIDATES]]
    loads = {
        "1 example": requests_of([{"instances": [row]} for row in rows]),
        "128 examples": requests_of([{"instances": rows[n : n + 128]} for n in range(0, 800, 100)]),
        "200 expanded": requests_of([{"instances": [{**each, **context} for each in offered]}]),
        "200 candidates": requests_of([{"context": context, "candidates": offered}]),
    }
    kinds = [(name, count) for name in loads for count in CONNECTIONS[: LOADS.get(name, 1)]]
    found = {(name, count): loaded(server, loads[name], count, seconds) for name, count in kinds}
    rate = 0.6 * max(found["1 example", count][PER_CORE] for count in CONNECTIONS)
    return found | {(OPEN, 64): loaded(server, loads["1 example"], 64, seconds, rate)}


def main(arguments: list[str] | None = None) -> None:
    parser = sides.parser(__doc__)
    parser.add_argument("--demo", help="directory in which the demo's data and publication stay; else temporary")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all loads, default 3")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each load in a round, default 4")
    flags, cores = parser.parse_args(arguments), sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as directory:
        demo, log = pathlib.Path(flags.demo or directory), pathlib.Path(directory, "score.log")
        rows = published(demo)
        os.sched_setaffinity(0, cores[:1])  # The server inherits its core.
        with serving(demo / NAME, log, f"--name={NAME}", "--timeout_secs=60") as server:
            os.sched_setaffinity(0, cores[-1:])
            measure(server, rows, 0.2)  # For warm caches.
            rounds = [measure(server, rows, flags.seconds) for _ in range(flags.rounds)]
    medians = {k: {x: statistics.median(each[k][x] for each in rounds) for x in v} for k, v in rounds[0].items()}
    print(*sides.markdown(COLUMNS, [{"load": load, **each} for (load, _), each in medians.items()]), sep="\n")

    most = {name: max(each[PER_CORE] for (load, _), each in medians.items() if load == name) for name, _ in medians}
    figures = {PER_CORE: round(most["1 example"]), "requests_128_per_core_sec": round(most["128 examples"])}
    figures |= {"p99_ms_at_60_percent": round(medians[OPEN, 64]["p99"], 2)}
    figures |= {"candidates_speedup": round(most["200 candidates"] / most["200 expanded"], 2)}
    print(json.dumps(figures | {"generator_cores": round(max(x["generator_cores"] for x in medians.values()), 2)}))


if __name__ == "__main__":
    main()
