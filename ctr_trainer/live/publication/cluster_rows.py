"""Writes and reads the rows of a publication in a cluster, and deletes old generations."""

import logging
import sys
from collections.abc import Collection

import numpy as np
import tqdm

from ctr_trainer.embedding.snapshot.packed_rows import ROWS, read_removed, read_rows, unpack, value_bytes
from ctr_trainer.live.publication import cluster_contents
from ctr_trainer.live.publication.cluster import (
    Cluster,
    as_bytes,
    buckets_of,
    generation_of,
    mark_name,
    row_names,
)
from ctr_trainer.live.publication.reading import RowsAhead
from ctr_trainer.live.publication.records import Record
from ctr_trainer.system.files.paths import Path

_log = logging.getLogger(__name__)
_NAMES_A_SCAN = 1000
# The epoch of a removed key stays this long, so that a reader notices that its record is too old; see `ClusterReader`.
REMOVED_SECONDS = 600
_ROWS_A_RUN = 50_000


def sweep(cluster: Cluster, kept: Collection[int], newest: int) -> None:
    """Scans all names of a cluster, and deletes the rows of the generations up to `newest`, except those in `kept`.

    It deletes the marks of a generation before the rows, so that a reader that still serves the generation notices.
    """
    found: set[int] = set()
    deleted = 0
    for place in cluster.primaries.values():
        cursor = b"0"
        while cursor:
            # The pattern matches the names of the rows and marks of all generations.
            command = ("SCAN", cursor, "MATCH", f"{{????}}{cluster.name}:*", "COUNT", _NAMES_A_SCAN)
            ((following, page),) = cluster.run([(place, command)])
            cursor = following if following != b"0" else b""
            old: dict[int, list[bytes]] = {}
            for row in page:
                generation = generation_of(cluster.name, row)
                if generation is None or generation in kept or generation > newest:
                    continue
                if generation not in found:
                    found.add(generation)
                    cluster.run(cluster_contents.of_marks(cluster, generation, "UNLINK"))
                old.setdefault(int(row[1:5], 16), []).append(row)  # The bucket is in its tag.
            cluster.run([(bucket, ("UNLINK", *rows)) for bucket, rows in old.items()])
            deleted += sum(map(len, old.values()))
    if deleted:
        _log.info("%s: deleted %d rows of other generations", cluster.url, deleted)


def put(cluster: Cluster, record: Record, directory: Path) -> None:
    """Writes the rows of a record, whose generation is the cluster's, from the directory with the record's files.

    Replaces each removed row by the record's epoch, which expires after 10 minutes.
    """
    configs = record.configs()
    with tqdm.tqdm(desc="publishing", unit=" rows", total=record.rows, disable=not sys.stderr.isatty()) as bar:
        for entry in record.files:
            config = configs[entry["table"]]
            with (directory / entry["file"]).local_file() as local:
                if entry["kind"] != ROWS:
                    for keys in read_removed(local, config, record.dtype):
                        _remove(cluster, record, config.name, keys)
                    continue
                for keys, values in read_rows(local, config, record.dtype):
                    for first in range(0, len(keys), _ROWS_A_RUN):
                        some = slice(first, first + _ROWS_A_RUN)
                        _set(cluster, record, config.name, keys[some], values[some])
                        bar.update(len(keys[some]))


def read(cluster: Cluster, record: Record, table: str, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the result of `RowReader.read`. Takes one round trip.

    Raises:
      RowsLost: the cluster has lost rows of these buckets.
      RowsAhead: a row is more than one epoch ahead of the record.
      ClusterChanged: a node was lost or its slots have moved; refresh the cluster and read again.
    """
    config = record.configs()[table]
    order, buckets, edges = _by_bucket(keys)
    names = row_names(cluster.name, record.generation, table, keys[order], buckets)
    own = [(int(buckets[first]), names[first:stop]) for first, stop in edges]
    # One command reads a bucket's rows and its mark, so that no row can be lost in between.
    marks = [mark_name(cluster.name, record.generation, bucket) for bucket, _ in own]
    answers = cluster.run([(bucket, ("MGET", *some, mark)) for (bucket, some), mark in zip(own, marks, strict=True)])
    is_there = [cluster_contents.is_mark_of(answer.pop(), record.epoch) for answer in answers]
    if not all(is_there):
        lost = {cluster.primary_of(bucket) for (bucket, _), there in zip(own, is_there, strict=True) if not there}
        raise cluster_contents.rows_lost(cluster, record, lost)
    values = [value for answer in answers for value in answer]
    weights = np.zeros((len(keys), config.weights), np.float32)
    width = value_bytes(config, record.dtype)
    there = np.fromiter((value is not None and len(value) == width for value in values), np.bool_, len(values))
    packed = np.frombuffer(b"".join(value for value in values if value and len(value) == width), np.uint8)
    found = np.zeros(len(keys), np.bool_)
    found[order] = there
    weights[order[there]], epochs = unpack(packed.reshape(-1, width), config, record.dtype)
    removed = [int.from_bytes(value, "little") for value in values if value is not None and len(value) != width]
    newest = max([*removed, int(epochs.max(initial=0))], default=0)
    if newest > record.epoch + 1:
        raise RowsAhead(f"{cluster.url}: rows of epoch {newest} were read, but epoch {record.epoch} is served")
    return weights, found


def _set(cluster: Cluster, record: Record, table: str, keys: np.ndarray, values: np.ndarray) -> None:
    order, buckets, edges = _by_bucket(keys)
    pairs = [b""] * (2 * len(keys))
    pairs[0::2] = row_names(cluster.name, record.generation, table, keys[order], buckets)
    pairs[1::2] = as_bytes(values[order])
    cluster.run([(int(buckets[first]), ("MSET", *pairs[2 * first : 2 * stop])) for first, stop in edges])


def _remove(cluster: Cluster, record: Record, table: str, keys: np.ndarray) -> None:
    epoch = int(record.epoch).to_bytes(4, "little")
    for first in range(0, len(keys), _ROWS_A_RUN):
        some = keys[first : first + _ROWS_A_RUN]
        buckets = buckets_of(some)
        names = row_names(cluster.name, record.generation, table, some, buckets)
        pairs = zip(buckets.tolist(), names, strict=True)
        cluster.run([(bucket, ("SET", name, epoch, "EX", REMOVED_SECONDS)) for bucket, name in pairs])


def _by_bucket(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
    """Returns the order that sorts keys by bucket, the sorted buckets, and the range (first, stop) of each bucket."""
    buckets = buckets_of(keys)
    order = np.argsort(buckets, kind="stable")
    buckets = buckets[order]
    edges = np.flatnonzero(np.diff(buckets, prepend=-1, append=-1)).tolist()
    return order, buckets, list(zip(edges, edges[1:], strict=False))
