"""The scoring server under load: requests of one example, at a fixed rate; rows in a directory and in a cluster.

The demo's model is published, to a directory and to a Redis Cluster of six servers on this host (three primaries, three
replicas), and served by `python -m ctr_trainer score`. Requests are due at fixed times, whether or not those before
were answered; a latency is from the time that a request was due to the last byte of its answer, as a client sees it.
Server, cluster and client share the cores of this host. The last line is JSON:

| key | |
|---|---|
| `score_p50_ms_directory`, `score_p99_ms_directory` | milliseconds of a request; rows in a directory |
| `score_p50_ms_cluster`, `score_p99_ms_cluster` | the same, rows in a cluster; the rows' cache is off |
| `score_p99_ms_cluster_cached` | the same with the cache as it is by default |
| `requests_per_sec`, `seconds`, `failures` | what was asked, for how long, and answers other than 200 |

Example: python benchmarks/score.py                                  # makes and trains the demo first: minutes
         python benchmarks/score.py --model_dir=demo/model --data=demo/data --seconds=60
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import demo_job
import numpy as np

sys.path.insert(0, str(demo_job.ROOT))
from tests import redis_cluster  # noqa: E402

NAME, NUMBERS = "demo", 13
WARM_SECONDS, START_SECONDS = 5, 120


def requests_of(sample):
    """-> list of HTTP requests, one per line of a file of Criteo's raw format."""
    found = []
    for line in pathlib.Path(sample).read_text(encoding="utf-8").splitlines():
        _, *values = line.split("\t")
        example = {f"I{i + 1}": float(value) if value else None for i, value in enumerate(values[:NUMBERS])}
        example |= {f"C{i + 1}": value for i, value in enumerate(values[NUMBERS:])}
        body = json.dumps({"instances": [example]}).encode()
        head = f"POST /v1/models/{NAME}:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        found.append(head.encode() + body)
    return found


@contextlib.contextmanager
def serving(url, directory, *flags):
    """-> the port of a scoring server of a publication, which has loaded it; ends it."""
    port_file, log = pathlib.Path(directory, "port"), pathlib.Path(directory, "score.log")
    port_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "ctr_trainer", "score", f"--model={url}", f"--name={NAME}", "--port=0"]
    with open(log, "w") as out:
        process = subprocess.Popen(
            [*command, f"--port_file={port_file}", *flags], stderr=out, env=demo_job.environment()
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while "global step" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{' '.join(command)} does not serve:\n{log.read_text()[-3000:]}")
            time.sleep(0.1)
        yield int(port_file.read_text().rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


class Load:
    """Sends requests to a server at a fixed rate, over connections that stay open."""

    def __init__(self, port, requests, rate):
        self._port, self._requests, self._rate = port, requests, rate
        self._idle, self._latencies, self._failures = [], [], 0

    async def run(self, seconds):
        """-> (latencies in milliseconds, answers other than 200)."""
        self._latencies, self._failures, tasks = [], 0, []
        began = time.perf_counter()
        for number, request in zip(range(int(seconds * self._rate)), itertools.cycle(self._requests), strict=False):
            due = began + number / self._rate
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            tasks.append(asyncio.create_task(self._send(request, due)))
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        return np.array(self._latencies), self._failures

    async def _send(self, request, due):
        connection = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = connection
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
        self._latencies.append(1000 * (time.perf_counter() - due))
        self._failures += not head.startswith(b"HTTP/1.1 200")
        self._idle.append(connection)


async def load(port, requests, rate, seconds):
    """-> (latencies, failures) of a server that is warm."""
    sender = Load(port, requests, rate)
    await sender.run(WARM_SECONDS)
    return await sender.run(seconds)


def measure(args, requests, url, directory, *flags):
    """-> (p50 and p99 in milliseconds, failures) of a publication."""
    with serving(url, directory, *flags) as port:
        latencies, failures = asyncio.run(load(port, requests, args.rate, args.seconds))
    at = {each: round(float(np.percentile(latencies, each)), 2) for each in (50, 90, 99, 99.9)}
    print(f"{url} {' '.join(flags)}: {len(latencies)} requests, {failures} failed, percentiles in ms: {at}", flush=True)
    return at[50], at[99], failures


def publish(model_dir, url):
    """Publishes the newest checkpoint of a model."""
    demo_job.call(sys.executable, "-m", "ctr_trainer", "publish", f"--model_dir={model_dir}", f"--to={url}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long each is measured")
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second")
    parser.add_argument("--model_dir", default="", help="of a trained demo; trained first if there is none")
    parser.add_argument("--data", default="", help="the demo's data, with its sample.tsv")
    parser.add_argument("--directory", default="", help="for data, models and publications; a temporary one if none")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(args.directory or stack.enter_context(tempfile.TemporaryDirectory()))
        data = pathlib.Path(args.data) if args.data else demo_job.demo_data(directory)
        model_dir = args.model_dir or directory / "model"
        if not args.model_dir:
            demo_job.train(data, model_dir)
        requests = requests_of(data / "sample.tsv")
        publish(model_dir, directory / "publication")
        p50, p99, failures = measure(args, requests, directory / "publication", directory)
        found = dict(score_p50_ms_directory=p50, score_p99_ms_directory=p99)
        if redis_cluster.server_binary() is not None:
            (directory / "cluster").mkdir(exist_ok=True)
            cluster = stack.enter_context(redis_cluster.running(directory / "cluster", node_timeout_ms=5000))
            publish(model_dir, cluster.url)
            p50, p99, failed = measure(args, requests, cluster.url, directory, "--cache_rows=0")
            found |= dict(score_p50_ms_cluster=p50, score_p99_ms_cluster=p99)
            _, cached, failed_cached = measure(args, requests, cluster.url, directory)
            found |= dict(score_p99_ms_cluster_cached=cached)
            failures += failed + failed_cached
        print(json.dumps({**found, "requests_per_sec": args.rate, "seconds": args.seconds, "failures": failures}))


if __name__ == "__main__":
    os.chdir(demo_job.ROOT)
    main()
