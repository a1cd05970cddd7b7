"""Delivers a publication to a Redis or Valkey cluster."""

import contextlib
import dataclasses
import logging
import sys
import time

import numpy as np
import tqdm

from ctr_trainer.embedding.snapshot.packed_files import ROWS, read_removed, read_rows
from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication import cluster_tower
from ctr_trainer.publication.cluster import CONTROL, Cluster, ClusterChanged
from ctr_trainer.publication.cluster_fence import ClusterFence
from ctr_trainer.publication.cluster_keys import as_bytes, buckets_of, control_name, mark_name, row_names
from ctr_trainer.publication.cluster_state import ClusterState, read_state
from ctr_trainer.publication.cluster_sweep import ClusterSweep
from ctr_trainer.publication.delivered import NeedsBase

_log = logging.getLogger(__name__)
_ROWS_A_RUN = 50_000
GRACE_SECONDS, LEASE_SECONDS = 600.0, 10.0
# A removed key leaves its epoch for so long, so that a reader sees that its record is too old; see `ClusterReader`.
REMOVED_SECONDS = 600
_REPLICA_MS = 2000
_UNFINISHED_SECONDS = 3600  # A tower without a record goes by itself.
_TRIES, _FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 12, 0.25, 5.0
# Each script answers with the token of the process that has the fence now; with '' if it is this one.
_FENCED = """
local fence = redis.call('GET', KEYS[1])
if fence and fence ~= ARGV[1] then return {fence} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
"""
_BEGIN = f"""{_FENCED}
return {{'', redis.call('INCR', KEYS[2])}}
"""
_COMMIT = f"""{_FENCED}
if redis.call('GET', KEYS[2]) ~= ARGV[3] then return {{'', 0}} end
redis.call('SET', KEYS[3], ARGV[4])
redis.call('PERSIST', KEYS[4])
if KEYS[5] ~= KEYS[4] then redis.call('EXPIRE', KEYS[5], ARGV[5]) end
return {{'', 1}}
"""


class ClusterTarget:
    """A `Target` in a cluster.

    The rows of a record come first, in commands of a bucket each, then the tower, then on each primary a mark with the
    record's number, which a replica has to acknowledge; then the record, by a script that looks at the fence. A primary
    gives its replicas all it has in order, so one that has the mark has the rows. Between the first row and the mark no
    primary may have been replaced, restarted or given other slots, or all of it is put again. Rows may come twice: a
    row is written whole, and by one publisher of its generation.

    Args:
      url: see `Cluster`.
      redis: `RedisFiles`.
      grace_secs: how long an older generation and older towers stay for readers.
      lease_secs: see `ClusterFence`.

    Raises:
      UserError: another process publishes there, or the cluster cannot be used.
    """

    def __init__(self, url, redis, grace_secs=GRACE_SECONDS, lease_secs=LEASE_SECONDS):
        self._grace, self._begun, self._is_sure, self._warned = int(grace_secs), None, False, False
        with contextlib.ExitStack() as stack:
            self._cluster = stack.enter_context(contextlib.closing(Cluster(url, redis)))
            _refuse_evicting(self._cluster)
            self._fence = stack.enter_context(contextlib.closing(ClusterFence(self._cluster, lease_secs)))
            self._state = read_state(self._cluster)
            self._ends = stack.pop_all()
        self._sweep = ClusterSweep(self._cluster, grace_secs)
        self._generation_name = control_name(self._cluster.name, "generation")

    def delivered(self, holder):
        if self._state is None or self._state.holder != holder:
            return None
        if not self._is_sure:
            self._cluster.refresh()
            self._check_marks()
            self._is_sure = True
        return self._state.record.epoch

    def deliver(self, holder, record, directory):
        pause = _FIRST_PAUSE_SECONDS
        for left in reversed(range(_TRIES)):
            try:
                begins = self.delivered(holder) is None
                self._put(holder, record, directory, begins)
                return
            except ClusterChanged as error:
                self._is_sure = False
                if not left:
                    raise
                _log.warning("%s %d is put again: %s", record.kind, record.epoch, error)
                time.sleep(pause)
                pause = min(pause * 2, _MOST_PAUSE_SECONDS)

    def tidy(self):
        if self._state is not None:
            self._sweep.step(self._state)

    def tidy_all(self):
        while self._state is not None and not self._sweep.is_done(self._state):
            self._sweep.step(self._state)

    def close(self):
        self._ends.close()

    def _put(self, holder, record, directory, begins):
        nodes = self._cluster.identity()
        if begins:
            generation, since = self._begin(holder), time.time()
        else:
            self._check_generation()
            self._check_marks()
            generation, since = self._state.record.generation, self._state.since
        record = dataclasses.replace(record, generation=generation)
        self._put_rows(record, directory)
        cluster_tower.put(self._cluster, record, directory / record.dense, _UNFINISHED_SECONDS)
        marks = self._mark(record)
        if self._cluster.identity() != nodes:
            raise ClusterChanged("a primary was replaced or restarted meanwhile")
        self._commit(ClusterState(holder, since, marks, record))

    def _begin(self, holder):
        """-> the number of a new generation; the same one if it is begun again."""
        if self._begun is None or self._begun[0] != holder:
            self._begun = holder, self._fenced(_BEGIN, [self._generation_name], [])
        return self._begun[1]

    def _put_rows(self, record, directory):
        configs = record.configs()
        with tqdm.tqdm(desc="publishing", unit=" rows", total=record.rows, disable=not sys.stderr.isatty()) as bar:
            for entry in record.files:
                config = configs[entry["table"]]
                with (directory / entry["file"]).local_file() as local:
                    if entry["kind"] != ROWS:
                        for keys in read_removed(local, config, record.dtype):
                            self._remove(record, config.name, keys)
                        continue
                    for keys, values in read_rows(local, config, record.dtype):
                        for first in range(0, len(keys), _ROWS_A_RUN):
                            some = slice(first, first + _ROWS_A_RUN)
                            self._set(record, config.name, keys[some], values[some])
                            bar.update(len(keys[some]))

    def _set(self, record, table, keys, values):
        buckets = buckets_of(keys)
        order = np.argsort(buckets, kind="stable")
        buckets = buckets[order]
        pairs = [None] * (2 * len(keys))
        pairs[0::2] = row_names(self._cluster.name, record.generation, table, keys[order], buckets)
        pairs[1::2] = as_bytes(values[order])
        edges = np.flatnonzero(np.diff(buckets, prepend=-1, append=-1)).tolist()
        self._cluster.run(
            [
                (int(buckets[first]), ("MSET", *pairs[2 * first : 2 * stop]))
                for first, stop in zip(edges, edges[1:], strict=False)
            ]
        )

    def _remove(self, record, table, keys):
        """Puts in place of each row the epoch in which it was removed, which goes by itself after a while."""
        epoch = int(record.epoch).to_bytes(4, "little")
        for first in range(0, len(keys), _ROWS_A_RUN):
            some = keys[first : first + _ROWS_A_RUN]
            buckets = buckets_of(some)
            names = row_names(self._cluster.name, record.generation, table, some, buckets)
            self._cluster.run(
                [
                    (bucket, ("SET", name, epoch, "EX", REMOVED_SECONDS))
                    for bucket, name in zip(buckets.tolist(), names, strict=True)
                ]
            )

    def _mark(self, record):
        """Waits until a replica of each primary has all that was put. -> the buckets of the marks"""
        buckets = list(self._cluster.primaries.values())
        value = _mark_of(record)
        sets = [(bucket, ("SET", mark_name(self._cluster.name, bucket), value)) for bucket in buckets]
        waits = [(bucket, ("WAIT", 1, _REPLICA_MS)) for bucket in buckets]
        answers = self._cluster.run([*sets, *waits])[len(sets) :]
        for name, replicas in zip(self._cluster.primaries, answers, strict=True):
            self._acknowledged(name, replicas)
        return buckets

    def _acknowledged(self, name, replicas):
        if replicas:
            return
        if self._cluster.replicas[name]:
            raise ClusterChanged(f"no replica of {name} has what was put within {_REPLICA_MS} ms")
        if not self._warned:
            self._warned = True
            _log.warning("%s: %s has no replica: if it is lost, so are its rows", self._cluster.url, name)

    def _check_marks(self):
        """Raises NeedsBase if a primary does not have the mark of the last record, as one that was restarted empty."""
        marks, record = self._state.marks, self._state.record
        found = self._cluster.run([(bucket, ("GET", mark_name(self._cluster.name, bucket))) for bucket in marks])
        # An attempt to put the next record may have left its marks; each comes after those of before.
        if any(not _is_marked(value, record) for value in found):
            raise NeedsBase(
                f"{self._cluster.url}: rows of {record.kind} {record.epoch} are lost there, as after the loss of a "
                "node and of its replicas: all rows are to be published anew"
            )

    def _commit(self, state):
        name, record = self._cluster.name, state.record
        tower = cluster_tower.tower_name(self._cluster, record)
        before = self._state and cluster_tower.tower_name(self._cluster, self._state.record)
        keys = [self._generation_name, control_name(name, "state"), tower, before or tower]
        if not self._fenced(_COMMIT, keys, [record.generation, state.to_json(), self._grace]):
            raise self._fenced_out()
        self._state, self._is_sure = state, True

    def _fenced(self, script, keys, values):
        """-> the answer of a script that does something if this process has the fence; a replica has it too.

        Raises:
          UserError: another process has the fence.
        """
        keys, values = [self._fence.name, *keys], [self._fence.token, self._fence.lease_ms, *values]
        command = ("EVAL", script, len(keys), *keys, *values)
        (holder, *answer), replicas = self._cluster.run([(CONTROL, command), (CONTROL, ("WAIT", 1, _REPLICA_MS))])
        if holder:
            raise self._fence.refusal(holder)
        self._acknowledged(self._cluster.control, replicas)
        return answer[0]

    def _check_generation(self):
        with self._cluster.told():
            generation = self._cluster.client.get(self._generation_name)
        if generation is None:
            raise NeedsBase(f"{self._cluster.url}: all that was published there is gone: it is to be published anew")
        if generation != b"%d" % self._state.record.generation:
            raise self._fenced_out()

    def _fenced_out(self):
        return NeedsBase(
            f"{self._cluster.url}: another process has begun a new generation, and this one is fenced out: all rows "
            "are to be published anew"
        )


def _mark_of(record):
    return f"{record.generation}:{record.epoch}".encode()


def _is_marked(value, record):
    """-> whether a mark is of a record, or of a later one of its generation."""
    generation, _, epoch = (value or b"").partition(b":")
    return generation == b"%d" % record.generation and int(epoch) >= record.epoch


def _refuse_evicting(cluster):
    """Raises UserError if the cluster gives rows up in silence when it is full."""
    for node in cluster.primary_nodes():
        with cluster.told():
            info = cluster.client.get_redis_connection(node).info("memory")
        if info.get("maxmemory") and info.get("maxmemory_policy", "").startswith("allkeys"):
            raise UserError(
                f"{cluster.url}: {node.name} evicts rows when full (maxmemory-policy {info['maxmemory_policy']}): "
                "set it to noeviction, so that nothing is lost in silence"
            )
