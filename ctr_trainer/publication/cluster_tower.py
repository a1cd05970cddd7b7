"""Dense towers in a cluster: a hash each, whose fields are parts of the files."""

from ctr_trainer.publication.cluster_keys import control_name

_PART_BYTES = 4 << 20
_WHOLE = "whole"


def tower_name(cluster, record):
    """-> the name of a record's tower."""
    return control_name(cluster.name, f"tower:{record.generation}:{record.dense}")


def put(cluster, record, directory, expire_secs):
    """Copies a tower into the cluster, unless it is there whole. It expires unless a record makes it stay.

    Args:
      cluster: `Cluster`.
      record: `Record`; its generation is the cluster's.
      directory: `Path` of the tower.
      expire_secs: after how long.
    """
    name, client = tower_name(cluster, record), cluster.client
    with cluster.told():
        if client.hexists(name, _WHOLE):
            return
        for entry in record.dense_files:
            for part, block in enumerate((directory / entry["file"]).blocks(_PART_BYTES)):
                client.hset(name, f"{part}:{entry['file']}", block)
                client.expire(name, expire_secs)
        client.hset(name, _WHOLE, 1)
        client.expire(name, expire_secs)


def blocks_of(cluster, record, file):
    """Yields the bytes of a tower's file, part by part; none if it is not there."""
    name, part = tower_name(cluster, record), 0
    while True:
        with cluster.told():
            block = cluster.client.hget(name, f"{part}:{file}")
        if block is None:
            return
        yield block
        part += 1
