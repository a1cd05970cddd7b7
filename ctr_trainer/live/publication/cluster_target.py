"""Delivers a publication to a Redis or Valkey cluster."""

import contextlib
import dataclasses
import logging
import threading
import time
from typing import Any

from ctr_trainer.live.publication import cluster_contents, cluster_rows
from ctr_trainer.live.publication.cluster import (
    CONTROL,
    Cluster,
    ClusterChanged,
    ClusterFull,
    Command,
    control_name,
)
from ctr_trainer.live.publication.cluster_contents import ClusterFence, ClusterState, read_state
from ctr_trainer.live.publication.records import BASE, Record, refuse_replacing
from ctr_trainer.live.publication.spool import NeedsBase
from ctr_trainer.settings.training_configs import GRACE_SECONDS, RedisFiles
from ctr_trainer.system.files.paths import Path
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
LEASE_SECONDS = 10.0
_REPLICA_MS = 2000
_UNFINISHED_SECONDS = 3600  # A tower without a record expires.
_TRIES, _PAUSE_SECONDS = 15, 2.0  # A replica takes the place of a lost primary within some seconds.
# The first value that a script returns is '' if this process has the fence; otherwise it is the holder's token.
_FENCED = """
local fence = redis.call('GET', KEYS[1])
if fence and fence ~= ARGV[1] then return {fence} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
"""
_BEGIN = f"""{_FENCED}
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
local generation = string.format('%.0f', math.max(last + 1, tonumber(ARGV[3])))
redis.call('SET', KEYS[2], generation)
return {{'', generation}}
"""
_COMMIT = f"""{_FENCED}
if redis.call('GET', KEYS[2]) ~= ARGV[3] then return {{'', 0}} end
redis.call('SET', KEYS[3], ARGV[4])
redis.call('PERSIST', KEYS[4])
if KEYS[5] ~= KEYS[4] then redis.call('EXPIRE', KEYS[5], ARGV[5]) end
redis.call('XADD', KEYS[6], 'MAXLEN', 1, '*', 'generation', ARGV[3])
return {{'', 1}}
"""


class ClusterTarget:
    """A `Target` in a cluster.

    It writes the rows of a record, then the tower, then the marks of the buckets. It waits until a replica of each
    primary acknowledges the marks. A primary replicates its writes in order, so a replica that has the marks also has
    the rows. Last, a script checks the fence and writes the record. If a primary is replaced, restarted or given other
    slots between the first row and the marks, or has lost a mark, everything is written again. Rewriting is safe,
    because a generation has a single publisher, which writes each row as a whole.

    The number of a generation is its start time in milliseconds since 1970, so no number is used twice even if the
    cluster loses all its data. Before the rows of a new generation are written, the rows of older generations are
    deleted, except the current generation and, for a while, the previous one, which readers may still read.

    `grace_secs`: how long the previous generation and older towers stay for readers.

    Raises UserError: another process publishes there, or the cluster cannot be used.
    """

    def __init__(
        self, url: str, redis: RedisFiles, grace_secs: float = GRACE_SECONDS, lease_secs: float = LEASE_SECONDS
    ) -> None:
        self._grace, self._is_sure = int(grace_secs), False
        self._begun: tuple[str, int] | None = None  # A holder and its generation, which has no record yet.
        self._there: frozenset[int] | None = None  # All generations that may have rows; None if unknown.
        self._sweeping = threading.RLock()
        with contextlib.ExitStack() as stack:
            self._cluster = stack.enter_context(contextlib.closing(Cluster(url, redis)))
            _refuse_evicting(self._cluster)
            self._generation_name = control_name(self._cluster.name, "generation")
            self._state = read_state(self._cluster)
            try:
                fence = ClusterFence(self._cluster, lease_secs)
            except ClusterFull as error:
                _log.warning("%s; rows of other generations are deleted first", error)
                self.tidy()
                fence = ClusterFence(self._cluster, lease_secs)
            self._fence = stack.enter_context(contextlib.closing(fence))
            self._state = read_state(self._cluster)
            self._ends = stack.pop_all()
        if alone := sorted(name for name, replicas in self._cluster.replicas.items() if not replicas):
            _log.warning("%s: %s has no replica: if it is lost, so are its rows", url, ", ".join(alone))

    def newest_epoch(self, holder: str) -> int | None:
        if self._state is None or self._state.record.holder != holder:
            return None
        if not self._is_sure:
            self._cluster.refresh()
            self._check_marks(self._state.record)
            self._is_sure = True
        return self._state.record.epoch

    def deliver(self, record: Record, directory: Path) -> None:
        for left in reversed(range(_TRIES)):
            try:
                delivered = self.newest_epoch(record.holder)
                if delivered is not None and delivered >= record.epoch:
                    return  # The record was committed, but the answer was lost.
                if delivered is None and record.kind != BASE:
                    raise self._fenced_out()
                if delivered is None and self._state is not None:
                    url, state = self._cluster.url, control_name(self._cluster.name, "state")
                    refuse_replacing(url, self._state.record, record, f"the key {state}")
                self._put(record, directory, self._state if delivered is not None else None)
                return
            except ClusterFull:
                self.tidy()  # The grace time of a generation may have ended meanwhile.
                raise
            except ClusterChanged as error:
                self._is_sure = False
                if not left:
                    raise
                _log.warning("%s %d is written again: %s", record.kind, record.epoch, error)
                time.sleep(_PAUSE_SECONDS)
                self._read_state()

    def tidy(self) -> None:
        with self._sweeping:
            kept = self._kept()
            if self._there is not None and self._there <= kept:
                return
            # A process that takes the fence meanwhile begins a generation with a higher number.
            (newest,) = self._cluster.run([(CONTROL, ("GET", self._generation_name))])
            if newest is not None:  # Otherwise the cluster has lost it, and the next one is above all earlier ones.
                cluster_rows.sweep(self._cluster, kept, int(newest))
                self._there = kept

    def close(self) -> None:
        self._ends.close()

    def _kept(self) -> frozenset[int]:
        """Returns the generations whose rows stay."""
        kept = {self._begun[1]} if self._begun else set()
        if self._state is not None:
            kept.add(self._state.record.generation)
            if time.time() < self._state.since + self._grace:
                kept.add(self._state.before)
        return frozenset(kept)

    def _read_state(self) -> None:
        """Reads the state again, because the answer to a commit may have been lost."""
        try:
            self._cluster.refresh()
            self._state = read_state(self._cluster)
            if self._state and self._begun == (self._state.record.holder, self._state.record.generation):
                self._begun = None
        except ClusterChanged as error:
            _log.debug("the state is read later: %s", error)

    def _put(self, record: Record, directory: Path, own: ClusterState | None) -> None:
        """Writes the record that follows the state `own`, or the first record of a generation if `own` is None."""
        nodes, before = self._cluster.identity(), self._state
        if own is None:
            generation = self._begin(record.holder)
            self._cluster.run(cluster_contents.of_marks(self._cluster, generation, "SET", -1, "NX"))
        else:
            self._check_marks(own.record)  # Before the marks are written, which would hide a loss.
            generation = own.record.generation
        record = dataclasses.replace(record, generation=generation)
        cluster_rows.put(self._cluster, record, directory)
        cluster_contents.put_tower(self._cluster, record, directory / record.dense, _UNFINISHED_SECONDS)
        self._mark(record)
        if self._cluster.identity() != nodes:
            raise ClusterChanged("a primary was replaced or restarted while the record was being written")
        if own is None:
            self._commit(ClusterState(time.time(), before.record.generation if before else 0, record))
        else:
            self._commit(dataclasses.replace(own, record=record))

    def _begin(self, holder: str) -> int:
        """Begins a generation and returns its number. A retry by the same holder returns the same number."""
        with self._sweeping:
            if self._begun is None or self._begun[0] != holder:
                self._begun = None  # `tidy` also deletes the rows of a generation without a record.
                self.tidy()
                least = max(self._state.record.generation + 1 if self._state else 1, time.time_ns() // 1_000_000)
                self._begun = holder, int(self._fenced(_BEGIN, [self._generation_name], [least]))
                if self._there is not None:
                    self._there |= {self._begun[1]}
            return self._begun[1]

    def _mark(self, record: Record) -> None:
        """Sets the marks to the record's epoch. Raises ClusterChanged if a mark has been lost, and rows with it."""
        marks = cluster_contents.of_marks(self._cluster, record.generation, "SET", record.epoch, "XX")
        answers = self._replicated(marks)
        lost = {self._cluster.primary_of(bucket) for bucket, answer in enumerate(answers) if answer is None}
        if lost:
            raise ClusterChanged(f"{self._cluster.url}: {', '.join(sorted(lost))} lost rows while rows were written")

    def _replicated(self, commands: list[Command]) -> list[Any]:
        """Runs commands, waits until a replica of each of their primaries has them, and returns the answers."""
        nodes = {self._cluster.primary_of(bucket): bucket for bucket, _ in commands}
        names = [name for name in nodes if self._cluster.replicas[name]]
        waits = [(nodes[name], ("WAIT", 1, _REPLICA_MS)) for name in names]
        answers = self._cluster.run([*commands, *waits])  # `WAIT` is for the writes of its own connection.
        for name, replicas in zip(names, answers[len(commands) :], strict=True):
            if not replicas:
                raise ClusterChanged(f"no replica of {name} has acknowledged the writes within {_REPLICA_MS} ms")
        return answers[: len(commands)]

    def _check_marks(self, record: Record) -> None:
        """Raises NeedsBase if rows of the last record are lost. Accepts marks of the next record, too."""
        lost = cluster_contents.nodes_that_lost_rows(self._cluster, record)
        if lost:
            raise NeedsBase(
                f"{self._cluster.url}: rows of {record.kind} {record.epoch} are lost at {', '.join(lost)}, as after "
                "the loss of a node and of its replicas: all rows must be published again"
            )

    def _commit(self, state: ClusterState) -> None:
        name, record = self._cluster.name, state.record
        tower = cluster_contents.tower_name(self._cluster, record)
        before = self._state and cluster_contents.tower_name(self._cluster, self._state.record)
        commits = control_name(name, "commits")
        keys = [self._generation_name, control_name(name, "state"), tower, before or tower, commits]
        if not self._fenced(_COMMIT, keys, [record.generation, state.to_json(), self._grace]):
            if self._begun is None:
                raise self._fenced_out()
            self._begun = None
            raise ClusterChanged(f"{self._cluster.url}: the cluster has another generation, or has lost this one")
        self._state, self._is_sure, self._begun = state, True, None

    def _fenced(self, script: str, keys: list[str], values: list[Any]) -> Any:
        """Runs a script that writes only if this process has the fence, then waits until a replica has the writes."""
        arguments = [*keys, self._fence.token, self._fence.lease_ms, *values]
        command = ("EVAL", script, 1 + len(keys), self._fence.name, *arguments)
        ((holder, *answer),) = self._replicated([(CONTROL, command)])
        if holder:
            raise self._fence.refusal(holder)
        return answer[0]

    def _fenced_out(self) -> NeedsBase:
        return NeedsBase(
            f"{self._cluster.url}: another process has begun a new generation, or the cluster has lost this one: this "
            "process may no longer write, and all rows must be published again"
        )


def _refuse_evicting(cluster: Cluster) -> None:
    """Raises UserError if the cluster evicts rows silently when it is full."""
    fields = ("INFO memory", "maxmemory"), ("INFO memory", "maxmemory_policy")
    for name, (most, policy) in cluster.info(*fields).items():
        if most not in ("", "0") and policy.startswith("allkeys"):
            raise UserError(
                f"{cluster.url}: {name} evicts rows when full (maxmemory-policy {policy}): set it to noeviction, so "
                "that no row is lost silently"
            )
