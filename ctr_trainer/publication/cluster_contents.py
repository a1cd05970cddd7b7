"""What a publication has in a cluster besides its rows: marks of the buckets, the state, and dense towers."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterable

from ctr_trainer.files.lease import LeaseRenewal, has_ended, new_owner, owner_name
from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication.cluster import CONTROL, Cluster, ClusterChanged
from ctr_trainer.publication.cluster_keys import BUCKETS, control_name, mark_name
from ctr_trainer.publication.reading import RowsLost
from ctr_trainer.publication.records import Record

_LOOK_SECONDS = 0.2
_RENEW = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2])"
_TAKE_OVER = "return redis.call('GET', KEYS[1]) == ARGV[3] and redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])"
_GIVE_BACK = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])"
_FORMAT = 2
_PART_BYTES = 4 << 20
_WHOLE = "whole"


class ClusterFence:
    """Holds the lease until `close`, or until some time after this process ended; a thread renews it.

    The lease of a publisher that was killed on this machine is taken over at once, and that of another one when it was
    not renewed in time.

    Args:
      cluster: `Cluster`.
      lease_secs: how long a lease lives without a renewal.

    Attributes:
      name: of the lease.
      token: its value; a script that writes a record makes sure that it is still there.
      lease_ms: as the script sets it.

    Raises:
      UserError: another process renews the lease; the message names it.
      ClusterFull: nobody has the lease, and the cluster has no room for it.
    """

    def __init__(self, cluster: Cluster, lease_secs: float):
        self._cluster, self.lease_ms = cluster, int(lease_secs * 1000)
        self.name = control_name(cluster.name, "fence")
        self.token = json.dumps(new_owner())
        self._take()
        self._renewal = LeaseRenewal(lease_secs, self._renew, "publication fence")

    def refusal(self, token: str | bytes) -> UserError:
        """Returns the UserError of a lease that another process has."""
        return UserError(
            f"{self._cluster.url}: {owner_name(_token_values(token))} publishes there now; wait for its end, or "
            "publish under another name"
        )

    def close(self) -> None:
        """Gives the lease back."""
        self._renewal.close()
        with contextlib.suppress(UserError), self._cluster.told():
            self._cluster.client.eval(_GIVE_BACK, 1, self.name, self.token)

    def _take(self) -> None:
        from redis.exceptions import OutOfMemoryError

        client, left, full = self._cluster.client, None, None
        while True:
            with self._cluster.told():
                try:
                    if client.set(self.name, self.token, nx=True, px=self.lease_ms):
                        return
                except OutOfMemoryError as error:  # Also if another process has the lease.
                    full = error
                before, left = left, client.pttl(self.name)
                holder = client.get(self.name)
                is_free = holder is None or has_ended(_token_values(holder))
                if full is not None and is_free:
                    raise full
                if holder is not None and is_free:
                    client.eval(_TAKE_OVER, 1, self.name, self.token, self.lease_ms, holder)
                    if client.get(self.name) == self.token.encode():
                        return
            if holder is not None and before is not None and left > before:
                raise self.refusal(holder)
            time.sleep(_LOOK_SECONDS)

    def _renew(self) -> bool:
        with self._cluster.told():
            self._cluster.client.eval(_RENEW, 1, self.name, self.token, self.lease_ms)
        return True


def _token_values(token: str | bytes) -> dict:
    """Returns what a token says; an empty dict if it is none of ours."""
    with contextlib.suppress(ValueError):
        values = json.loads(token)
        if isinstance(values, dict):
            return values
    return {}


def begin_marks(cluster: Cluster, generation: int) -> None:
    """Makes the marks of a generation that begins; those that are there stay as they are."""
    names = [(bucket, mark_name(cluster.name, generation, bucket)) for bucket in range(BUCKETS)]
    cluster.run([(bucket, ("SET", name, b"", "NX")) for bucket, name in names])


def put_marks(cluster: Cluster, record: Record) -> None:
    """Gives the marks the epoch of a record, whose rows were put.

    Raises:
      ClusterChanged: a mark has gone since it was made, and rows with it.
    """
    names = [(bucket, mark_name(cluster.name, record.generation, bucket)) for bucket in range(BUCKETS)]
    answers = cluster.run([(bucket, ("SET", name, b"%d" % record.epoch, "XX")) for bucket, name in names])
    lost = sorted({cluster.primary_of(bucket) for bucket, answer in enumerate(answers) if answer is None})
    if lost:
        raise ClusterChanged(f"{cluster.url}: {', '.join(lost)} lost rows while they were put")


def nodes_that_lost_rows(cluster: Cluster, record: Record, buckets: Iterable[int] = range(BUCKETS)) -> list[str]:
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
            if not is_mark_of(mark, record.epoch)
        }
    )


def rows_lost(cluster: Cluster, record: Record, nodes: Iterable[str]) -> RowsLost:
    """Returns the error of rows that are lost at nodes of these names."""
    return RowsLost(
        f"{cluster.url}: rows of generation {record.generation} are lost at {', '.join(sorted(nodes))}: requests are "
        "refused until all rows are published anew; a training with --publish does so by itself, and `publish` does it "
        "for a checkpoint"
    )


def is_mark_of(mark: bytes | None, epoch: int) -> bool:
    """Returns whether a mark is of an epoch, or of a later one of its generation."""
    return bool(mark) and int(mark) >= epoch


@dataclasses.dataclass(frozen=True)
class ClusterState:
    """The state of a publication in a cluster, under one name.

    Attributes:
      holder: of the generation.
      since: seconds since 1970, at which the first record of the generation was committed.
      before: the generation that was the current one until then; 0 if there was none.
      record: the `Record`; its generation is the cluster's.
    """

    holder: str
    since: float
    before: int
    record: Record

    @property
    def place(self) -> tuple[str, int, int]:
        """What differs between any two records that were ever committed."""
        return self.holder, self.record.generation, self.record.epoch

    def to_json(self) -> str:
        """Returns what `read_state` reads."""
        values = {"format": _FORMAT, "holder": self.holder, "since": self.since, "before": self.before}
        return json.dumps({**values, "record": self.record.to_dict()})


def read_state(cluster: Cluster) -> ClusterState | None:
    """Returns the `ClusterState`; None if nothing is published.

    Raises:
      UserError: the cluster does not answer, or what it has is of another version.
    """
    name = control_name(cluster.name, "state")
    (text,) = cluster.run([(CONTROL, ("GET", name))])
    if text is None:
        return None
    where = f"{cluster.url}, {name}"
    try:
        values = json.loads(text)
        if values.pop("format") != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}")
        return ClusterState(**{**values, "record": Record.from_dict(values["record"], where)})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{where}: is no publication of this version of ctr_trainer: {error}; delete it, then publish again"
        ) from None


def tower_name(cluster, record):
    """-> the name of a record's tower."""
    return control_name(cluster.name, f"tower:{record.generation}:{record.dense}")


def put_tower(cluster, record, directory, expire_secs):
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


def tower_blocks(cluster, record, file):
    """Yields the bytes of a tower's file, part by part; none if it is not there."""
    name, part = tower_name(cluster, record), 0
    while True:
        with cluster.told():
            block = cluster.client.hget(name, f"{part}:{file}")
        if block is None:
            return
        yield block
        part += 1
