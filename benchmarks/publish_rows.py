"""How fast rows get into a real cluster, and what they take there; the last line is JSON.

    python benchmarks/publish_rows.py --rows=400000 --rounds=5

Six servers on this machine, three primaries with a replica each, and one publisher. In each round the rows are
published as a base, by `ClusterTarget.deliver`, and then put by plain pipelined SETs of the same names and values, by
redis-py's pipeline of each node; medians of the rounds. `per_sec_core` is per second of CPU of the publishing process;
`per_sec_of_all_cpu` counts the servers' CPU too, replicas included. `bytes_per_row_served` is what a primary's memory
grows by, over the bytes of the packed row; its name and what the server adds are in.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np
import psutil

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from ctr_trainer.embedding.snapshot import packed_files  # noqa: E402
from ctr_trainer.embedding.snapshot.arrow_file import arrow_file  # noqa: E402
from ctr_trainer.embedding.snapshot.packed_rows import DTYPES, pack, value_bytes  # noqa: E402
from ctr_trainer.embedding.snapshot.snapshot import key_array  # noqa: E402
from ctr_trainer.embedding.table.table_config import TableConfig  # noqa: E402
from ctr_trainer.files.local_path import LocalPath  # noqa: E402
from ctr_trainer.messages import log_lines  # noqa: E402
from ctr_trainer.publication.cluster_keys import SLOTS, as_bytes, buckets_of, row_names  # noqa: E402
from ctr_trainer.publication.cluster_target import ClusterTarget  # noqa: E402
from ctr_trainer.publication.records import Record  # noqa: E402
from ctr_trainer.settings.redis_files import RedisFiles  # noqa: E402
from tests import redis_cluster  # noqa: E402

CONFIG = TableConfig("dim16", (16, 1), (0.01, 0.0))
ROWS_A_BLOCK = 100_000
SETS_A_PIPELINE = 10_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    flags = parser.parse_args()
    log_lines.install()
    print(json.dumps(measure(flags.rows, flags.rounds, flags.dtype)), flush=True)


def measure(count, rounds, dtype):
    """-> dict of the figures."""
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(1, 2**62, count))
    values = pack(rng.normal(0, 0.1, (len(keys), CONFIG.width)).astype(np.float32), CONFIG, dtype, 0)
    times = {"published": [], "plain_pipelined_set": []}
    with tempfile.TemporaryDirectory(prefix="ctr_trainer-") as place, redis_cluster.running(place) as cluster:
        directory = LocalPath(place) / "spool"
        record = write_base(directory, keys, values, dtype)
        servers = [psutil.Process(process.pid) for process in cluster.processes()]
        with contextlib.closing(ClusterTarget(cluster.url, RedisFiles())) as target:
            before = used_memory(cluster)
            target.deliver("first", record, directory)
            grown = used_memory(cluster) - before
            for number in range(rounds):
                with timed(servers, times["published"]):
                    target.deliver(f"holder {number}", record, directory)
                cluster.clear_rows()
                with timed(servers, times["plain_pipelined_set"]):
                    put_plainly(target._cluster, keys, values)
                cluster.clear_rows()
                print(f"round {number + 1}: {times}", flush=True)
    figures = {}
    for name, found in times.items():
        own, wall, both = (statistics.median(len(keys) / each[part] for each in found) for part in range(3))
        prefix = "rows_published" if name == "published" else name
        figures |= {
            f"{prefix}_per_sec_core": round(own),
            f"{prefix}_per_sec": round(wall),
            f"{prefix}_per_sec_of_all_cpu": round(both),
        }
    row = grown / len(keys)
    packed = value_bytes(CONFIG, dtype)
    return {
        **figures,
        "bytes_per_row_served": round(row / packed, 3),
        "server": cluster.version,
        "packed_bytes": packed,
        "server_bytes": round(row, 1),
        "rows": len(keys),
        "dtype": dtype,
    }


def write_base(directory, keys, values, dtype):
    """-> the `Record` of a base without a tower; its file is below `directory`."""
    directory.mkdir()
    schema = packed_files.schema(CONFIG, dtype, packed_files.ROWS)
    name = packed_files.file_name(CONFIG.name, packed_files.ROWS)
    with arrow_file(directory, name, schema) as file:
        for first in range(0, len(keys), ROWS_A_BLOCK):
            some = slice(first, first + ROWS_A_BLOCK)
            file.write([key_array(keys[some]), packed_files.value_array(values[some])])
        entry = dict(file=name, table=CONFIG.name, kind=packed_files.ROWS, **file.finish())
    tables = json.loads(json.dumps([{"config": CONFIG.to_dict()}]))
    return Record("bench", 1, 0, "base", 0, time.time(), dtype, tables, [entry], "dense-0000000000", [])


def put_plainly(cluster, keys, values):
    """Puts rows by one SET each, as redis-py pipelines them for one node."""
    buckets = buckets_of(keys)
    names = row_names("plain", 1, CONFIG.name, keys, buckets)
    by_node = {}
    for bucket, name, value in zip(buckets.tolist(), names, as_bytes(values), strict=True):
        node = cluster.client.nodes_manager.get_node_from_slot(SLOTS[bucket])
        by_node.setdefault(node, []).append((name, value))
    for node, pairs in by_node.items():
        for first in range(0, len(pairs), SETS_A_PIPELINE):
            pipeline = cluster.client.get_redis_connection(node).pipeline(transaction=False)
            for name, value in pairs[first : first + SETS_A_PIPELINE]:
                pipeline.set(name, value)
            pipeline.execute()


def used_memory(cluster):
    """-> bytes that the primaries have handed out, without what replication and connections have."""
    total = 0
    for port in cluster.primaries():
        lines = cluster.ask(port, "INFO", "memory").decode().splitlines()
        info = dict(line.split(":", 1) for line in lines if ":" in line)
        passing = ("mem_clients_normal", "mem_clients_slaves", "mem_total_replication_buffers")
        total += int(info["used_memory"]) - sum(int(info.get(name, 0)) for name in passing)
    return total


@contextlib.contextmanager
def timed(servers, times):
    """Adds (seconds of CPU of this process, seconds, seconds of CPU of this process and the servers) to a list."""

    def now():
        own = time.process_time()
        return own, time.perf_counter(), own + sum(sum(server.cpu_times()[:2]) for server in servers)

    before = now()
    yield
    times.append(tuple(round(after - first, 3) for after, first in zip(now(), before, strict=True)))


if __name__ == "__main__":
    main()
