"""The rows of a publication in a cluster: how they are put there, and how they are read."""

import sys

import numpy as np
import tqdm

from ctr_trainer.embedding.snapshot.packed_files import ROWS, read_removed, read_rows
from ctr_trainer.embedding.snapshot.packed_rows import unpack, value_bytes
from ctr_trainer.files.path import Path
from ctr_trainer.publication import cluster_marks
from ctr_trainer.publication.cluster import Cluster
from ctr_trainer.publication.cluster_keys import as_bytes, buckets_of, mark_name, row_names
from ctr_trainer.publication.reader import RowsAhead
from ctr_trainer.publication.records import Record

# A removed key leaves its epoch for so long, so that a reader sees that its record is too old; see `ClusterReader`.
REMOVED_SECONDS = 600
_ROWS_A_RUN = 50_000


def put(cluster: Cluster, record: Record, directory: Path) -> None:
    """Puts the rows of a record, and in place of each removed row the epoch, which goes by itself after a while.

    Args:
      cluster: `Cluster`.
      record: its generation is the cluster's.
      directory: that has the record's files.

    Raises:
      ClusterChanged: some rows may be lost.
      UserError: a file cannot be read, or the cluster does not take the rows.
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


def read(cluster: Cluster, record: Record, table: str, keys: np.ndarray) -> np.ndarray:
    """Returns float32[U, weights], the weights of rows; zeros for a key that has none. One round trip.

    Args:
      cluster: `Cluster`.
      record: that is served.
      table: name of the table.
      keys: int64[U].

    Raises:
      RowsLost: the cluster has lost rows of these buckets.
      RowsAhead: a row is more than one epoch ahead of the record.
      ClusterChanged: a node was lost or has other slots; the cluster is to be asked again.
    """
    config = record.configs()[table]
    order, buckets, edges = _by_bucket(keys)
    names = row_names(cluster.name, record.generation, table, keys[order], buckets)
    own = [(int(buckets[first]), names[first:stop]) for first, stop in edges]
    # One command reads the rows of a bucket and its mark, so no row can be lost in between.
    answers = cluster.run(
        [(bucket, ("MGET", *some, mark_name(cluster.name, record.generation, bucket))) for bucket, some in own]
    )
    marks = [answer.pop() for answer in answers]
    lost = {
        cluster.primary_of(bucket)
        for (bucket, _), mark in zip(own, marks, strict=True)
        if not cluster_marks.is_of(mark, record.epoch)
    }
    if lost:
        raise cluster_marks.rows_lost(cluster, record, lost)
    values = [value for answer in answers for value in answer]
    weights = np.zeros((len(keys), config.weights), np.float32)
    width = value_bytes(config, record.dtype)
    there = np.fromiter((value is not None and len(value) == width for value in values), np.bool_, len(values))
    packed = np.frombuffer(b"".join(value for value in values if value and len(value) == width), np.uint8)
    weights[order[there]], epochs = unpack(packed.reshape(-1, width), config, record.dtype)
    removed = [int.from_bytes(value, "little") for value in values if value is not None and len(value) != width]
    newest = max([*removed, int(epochs.max(initial=0))], default=0)
    if newest > record.epoch + 1:
        raise RowsAhead(f"{cluster.url}: rows of epoch {newest} were read, and {record.epoch} is served")
    return weights


def _set(cluster: Cluster, record: Record, table: str, keys: np.ndarray, values: np.ndarray) -> None:
    order, buckets, edges = _by_bucket(keys)
    pairs = [None] * (2 * len(keys))
    pairs[0::2] = row_names(cluster.name, record.generation, table, keys[order], buckets)
    pairs[1::2] = as_bytes(values[order])
    cluster.run([(int(buckets[first]), ("MSET", *pairs[2 * first : 2 * stop])) for first, stop in edges])


def _remove(cluster: Cluster, record: Record, table: str, keys: np.ndarray) -> None:
    epoch = int(record.epoch).to_bytes(4, "little")
    for first in range(0, len(keys), _ROWS_A_RUN):
        some = keys[first : first + _ROWS_A_RUN]
        buckets = buckets_of(some)
        names = row_names(cluster.name, record.generation, table, some, buckets)
        cluster.run(
            [
                (bucket, ("SET", name, epoch, "EX", REMOVED_SECONDS))
                for bucket, name in zip(buckets.tolist(), names, strict=True)
            ]
        )


def _by_bucket(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
    """Returns the order of keys by bucket, their buckets in it, and (first, stop) of each bucket's keys in it."""
    buckets = buckets_of(keys)
    order = np.argsort(buckets, kind="stable")
    buckets = buckets[order]
    edges = np.flatnonzero(np.diff(buckets, prepend=-1, append=-1)).tolist()
    return order, buckets, list(zip(edges, edges[1:], strict=False))
