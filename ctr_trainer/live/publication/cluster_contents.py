"""The data of a publication in a cluster, except its rows: the fence, the marks, the state and the dense towers.

Each bucket has a mark: the epoch up to which its rows were written. A node that loses rows also loses their marks.
"""

import contextlib
import dataclasses
import itertools
import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any

from ctr_trainer.live.publication.cluster import BUCKETS, CONTROL, Cluster, Command, control_name, mark_name
from ctr_trainer.live.publication.reading import RowsLost, pause
from ctr_trainer.live.publication.records import Record, check_file
from ctr_trainer.system.files.lease import Lease, Owner
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import Path
from ctr_trainer.system.messages.errors import UserError

_LOOK_SECONDS = 0.2
_RENEW = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2])"
_GIVE_BACK = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])"
_PART_BYTES = 4 << 20


class ClusterFence:
    """The lease that makes one process the only publisher. It is held until `close`; a thread renews it.

    If a publisher was killed on this machine, its lease is taken over at once. Any other lease must expire first.

    Attributes:
      name: name of the lease.
      token: value of the lease. A script that writes a record checks that the lease still has this value.
      lease_ms: lifetime of the lease without a renewal, in milliseconds.

    Raises:
      UserError: another process renews the lease; the message names the process.
      ClusterFull: the lease is free, but the cluster has no room for it.
    """

    def __init__(self, cluster: Cluster, lease_secs: float) -> None:
        self._cluster, self.lease_ms = cluster, int(lease_secs * 1000)
        self.name, owner = control_name(cluster.name, "fence"), Owner.new()
        self.token = owner.to_json()
        self._lease = Lease(self, owner, lease_secs)

    def refusal(self, token: str | bytes) -> UserError:
        return UserError(
            f"{self._cluster.url}: {Owner.of_json(token)} publishes there now; wait until it ends, or "
            "publish under another name"
        )

    def close(self) -> None:
        self._lease.close()

    def give_back(self, owner: Owner) -> None:
        self._cluster.ask("EVAL", _GIVE_BACK, 1, self.name, self.token)

    def take(self, owner: Owner, seconds: float) -> None:
        ask, left = self._cluster.ask, None
        while True:
            if (holder := ask("GET", self.name)) is None:
                if ask("SET", self.name, self.token, "NX", "PX", self.lease_ms):
                    return
            elif Owner.of_json(holder).has_ended():
                ask("EVAL", _GIVE_BACK, 1, self.name, holder)
                continue
            before, left = left, ask("PTTL", self.name)
            if holder is not None and before is not None and left > before:  # Renewed.
                raise self.refusal(holder)
            time.sleep(_LOOK_SECONDS)

    def renew(self, owner: Owner, seconds: float) -> Owner | None:
        self._cluster.ask("EVAL", _RENEW, 1, self.name, self.token, self.lease_ms)
        return None  # The scripts that write check the lease.


def of_marks(
    cluster: Cluster, generation: int, command: str, *arguments: Any, buckets: Iterable[int] = range(BUCKETS)
) -> list[Command]:
    """Returns a command for the mark of each bucket. A new generation's marks are -1."""
    names = [(bucket, mark_name(cluster.name, generation, bucket)) for bucket in buckets]
    return [(bucket, (command, name, *arguments)) for bucket, name in names]


def nodes_that_lost_rows(cluster: Cluster, record: Record, buckets: Iterable[int] = range(BUCKETS)) -> list[str]:
    """Returns the names of primaries that have lost rows of a committed record, by the marks of these buckets."""
    buckets = list(buckets)
    marks = cluster.run(of_marks(cluster, record.generation, "GET", buckets=buckets))
    marked = zip(buckets, marks, strict=True)
    return sorted({cluster.primary_of(bucket) for bucket, mark in marked if not is_mark_of(mark, record.epoch)})


def rows_lost(cluster: Cluster, record: Record, nodes: Iterable[str]) -> RowsLost:
    return RowsLost(
        f"{cluster.url}: rows of generation {record.generation} are lost at {', '.join(sorted(nodes))}: requests are "
        "refused until all rows are published again. A training with the setting publish does so by itself; for a "
        "checkpoint, run `publish`"
    )


def is_mark_of(mark: bytes | None, epoch: int) -> bool:
    """Returns whether a mark has this epoch or a later one."""
    return mark is not None and int(mark) >= epoch


@dataclasses.dataclass(frozen=True)
class ClusterState:
    """The current record of a publication in a cluster, stored under one name.

    Attributes:
      since: when the first record of the generation was committed, in seconds since 1970.
      before: the previous generation; 0 if there was none.
      record: the record, with the generation number that the cluster chose.
    """

    since: float
    before: int
    record: Record

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def read_state(cluster: Cluster) -> ClusterState | None:
    """Returns the state; None if nothing is published."""
    name = control_name(cluster.name, "state")
    (text,) = cluster.run([(CONTROL, ("GET", name))])
    if text is None:
        return None
    where = f"{cluster.url}, {name}"
    try:
        values = json.loads(text)
        return ClusterState(**{**values, "record": Record.from_dict(values["record"], where)})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{where} is not a publication: {error}; delete it, then publish again") from None


def tower_name(cluster: Cluster, record: Record) -> str:
    return control_name(cluster.name, f"tower:{record.generation}:{record.dense}")


def put_tower(cluster: Cluster, record: Record, directory: Path, expire_secs: int) -> None:
    """Copies a tower into the cluster. It expires unless its record is committed."""
    name = tower_name(cluster, record)
    for entry in record.dense_files:
        for part, block in enumerate((directory / entry["file"]).blocks(_PART_BYTES)):
            cluster.ask("HSET", name, f"{part}:{entry['file']}", block)
            cluster.ask("EXPIRE", name, expire_secs)


@contextlib.contextmanager
def fetched_tower(cluster: Cluster, record: Record) -> Iterator[str]:
    """Yields the path of a temporary copy of a tower, whose files are checked."""
    name = tower_name(cluster, record)
    with tempfile.TemporaryDirectory() as directory:
        for entry in record.dense_files:
            pause()
            path = LocalPath(directory) / entry["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                for part in itertools.count():
                    if (block := cluster.ask("HGET", name, f"{part}:{entry['file']}")) is None:
                        break
                    file.write(block)
            check_file(path, entry, f"{cluster.url}, {name}, {entry['file']}")
        yield directory
