"""Marks of a publication in a cluster: a key next to the rows of each bucket, which is lost when they are lost.

A mark holds the last epoch whose rows the bucket has. It lies in the slot of its rows, so a node that comes back empty,
is flushed, or is restored to an earlier state does not have it. A publisher makes the marks of a generation before it
puts rows, without an epoch, and gives them the epoch after the last row only where they are still there.
"""

from collections.abc import Iterable

from ctr_trainer.publication.cluster import Cluster, ClusterChanged
from ctr_trainer.publication.cluster_keys import BUCKETS, mark_name
from ctr_trainer.publication.reader import RowsLost
from ctr_trainer.publication.records import Record


def begin(cluster: Cluster, generation: int) -> None:
    """Makes the marks of a generation that begins; those that are there stay as they are."""
    names = [(bucket, mark_name(cluster.name, generation, bucket)) for bucket in range(BUCKETS)]
    cluster.run([(bucket, ("SET", name, b"", "NX")) for bucket, name in names])


def put(cluster: Cluster, record: Record) -> None:
    """Gives the marks the epoch of a record, whose rows were put.

    Raises:
      ClusterChanged: a mark has gone since it was made, and rows with it.
    """
    names = [(bucket, mark_name(cluster.name, record.generation, bucket)) for bucket in range(BUCKETS)]
    answers = cluster.run([(bucket, ("SET", name, b"%d" % record.epoch, "XX")) for bucket, name in names])
    lost = sorted({cluster.primary_of(bucket) for bucket, answer in enumerate(answers) if answer is None})
    if lost:
        raise ClusterChanged(f"{cluster.url}: {', '.join(lost)} lost rows while they were put")


def lost_at(cluster: Cluster, record: Record, buckets: Iterable[int] = range(BUCKETS)) -> list[str]:
    """Returns the names of the primaries that have lost rows of a record.

    Args:
      cluster: `Cluster`.
      record: that was committed.
      buckets: whose marks are read.
    """
    buckets = list(buckets)
    marks = cluster.run([(bucket, ("GET", mark_name(cluster.name, record.generation, bucket))) for bucket in buckets])
    return sorted(
        {
            cluster.primary_of(bucket)
            for bucket, mark in zip(buckets, marks, strict=True)
            if not is_of(mark, record.epoch)
        }
    )


def rows_lost(cluster: Cluster, record: Record, nodes: Iterable[str]) -> RowsLost:
    """Returns the error of rows that are lost at nodes of these names."""
    return RowsLost(
        f"{cluster.url}: rows of generation {record.generation} are lost at {', '.join(sorted(nodes))}: requests are "
        "refused until all rows are published anew; a training with --publish does so by itself, and `publish` does it "
        "for a checkpoint"
    )


def is_of(mark: bytes | None, epoch: int) -> bool:
    """Returns whether a mark is of an epoch, or of a later one of its generation."""
    return bool(mark) and int(mark) >= epoch
