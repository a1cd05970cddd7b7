"""Predicts the examples/s of a job from the capacities of its parts, and which part is the bottleneck.

There are W workers on H machines of C cores (w = W / H on each), and S shards. N is --sync_steps, M is
--dense_sync_steps, and D(n) is `Costs.distinct`. L workers train one copy of the rows: the w workers of a host, or 1 if
each worker has its own copy. There are K = W / L copies, whose windows have n = L N steps. For a step of a worker:

    rows sent       u = D(n) / n
    rows checked    c = (D(2n) - D(n)) / n              rows of a window that the previous one lacks; 0 if K is 1
    rows back       v = (D(n) + D((K-1)n) - D(Kn)) / n  rows that others changed, too: |A & B| = |A| + |B| - |A | B|
    requests        q = 1/n + 1/p                       to each shard: a sync, and a pull every p prefetched batches;
                                                        without the pulls if K is 1
    worker          a = f g (step + host + u push + c pull + q S request)
    a shard         s = f (q W request + u W shard_push + c W shard_pull / ...) / S, one core each
    cores           k = (w a + w x + shards on the machine * s) / C
    exchange        e = 2 (W-1) hop + 2 (W-1)/W bytes / min(link, network of a machine), each M-th step; in the
                        memory of one machine e = meeting + bytes / memory
    slowest worker  z = f g deviation sqrt(max(w / C, 1) / M) max_of(min(W, H C)), the delay of the slowest core
    network         n = bytes that a machine's workers, or a shard's machine, send or receive / Gbit/s
    row lock        a worker holds it for l = f g lock; the others hold it for b = (L - 1) l / t of the time, so that a
                        worker waits h = l b / (2 (1 - b)) for it

    seconds of a step  t = max(max(a, k) + z + e + h, s, n, L l),     examples/s = W batch_size / t

f is the slowdown by crowding at this number of busy cores. g is the slowdown by sharing, if there are more workers than
cores. max_of(n) is the expected maximum of n standard normal values. The time of the exchange adds to the compute, as
every worker waits for the last one; syncs run concurrently with the steps. There is no service with `shared` rows, and
with `auto` rows and one worker. Workers that train one copy of the rows take turns to update it.

Caveat: the model has no queues except at the row lock, all workers are equal, and there is no switch between the
machines. If two parts are almost equally busy, the measured speed is below the prediction. A ring of Gloo has 2 (W-1)
hops; the trees of NCCL have fewer. A hop between machines is assumed to take as long as a hop within a machine.

Source: the bounds of operational analysis, Denning and Buzen, The operational analysis of queueing network models, ACM
Computing Surveys 10 (3), 1978; the ring: Patarasu and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 69 (2), 2009;
D(n): Heaps, Information Retrieval, 1978, section 7.5; the wait for the row lock: Pollaczek's formula for equal times;
max_of: Blom, Statistical Estimates and Transformed Beta-Variables, 1958.
"""

import dataclasses
import math
import statistics

from ctr_trainer.bench.costs import Costs
from ctr_trainer.system.messages.errors import UserError

KEY_BYTES, VERSION_BYTES, POSITION_BYTES = 8, 4, 8
_BYTES_PER_GBIT = 1e9 / 8


@dataclasses.dataclass(frozen=True)
class Setup:
    """A job and the machines that it runs on.

    Attributes:
      workers: W, the number of workers.
      machines: H, the number of machines; the workers are spread evenly.
      cores: C, the number of cores of a machine; a worker uses one.
      rows: `auto` or `shared`, both for one machine; or `host:port`, a service whose shards each have a core on other
        machines.
      host_copies: whether the workers of a machine train one copy of the service's rows; if not, each has its own.
      shards: S, the number of shards of the service.
      sync_steps: N.
      dense_sync_steps: M.
      prefetch_batches: p; values below 1 count as 1.
      gbit: speed of a machine's network in each direction, in Gbit/s; 0 for no limit.
      in_memory: whether workers on one machine exchange dense variables in shared memory.
    """

    workers: int
    machines: int = 1
    cores: int = 1
    rows: str = "auto"
    host_copies: bool = True
    shards: int = 1
    sync_steps: int = 30
    dense_sync_steps: int = 1
    prefetch_batches: int = 4
    gbit: float = 0.0
    in_memory: bool = True

    def __post_init__(self) -> None:
        if self.rows in ("auto", "shared") and self.machines > 1:
            raise UserError(
                f"--embedding_service={self.rows} keeps the rows on one machine, and the job has {self.machines}: give "
                "host:port, the service's address"
            )

    @property
    def sharing(self) -> int:
        """L, the number of workers that train one copy of the rows."""
        local = -(-self.workers // self.machines)
        return local if self.host_copies or self.rows == "shared" else 1


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted speed of a job.

    Attributes:
      examples_per_sec: examples/s of all workers together.
      step_seconds: wall time of a step.
      parts: dict of part -> the step time if only this part limited it.
      bottleneck: the part with the longest time.
      row_lock_share: share of a step in which a worker waits for the row lock or holds it.
    """

    examples_per_sec: float
    step_seconds: float
    parts: dict[str, float]
    bottleneck: str
    row_lock_share: float


def predict(costs: Costs, setup: Setup) -> Prediction:
    """Predicts the speed of a job by the equations at the top of this module."""
    workers, rows = setup.workers, _Rows.of(costs, setup)
    local = -(-workers // setup.machines)
    served_here = setup.shards if rows.served and setup.rows == "auto" else 0
    crowding = _crowding(costs, min(local + served_here, setup.cores), setup.cores)
    worker = costs.step_seconds + costs.host_seconds + rows.worker_seconds(costs, setup)
    slowdown = crowding * _sharing(costs, local, setup.cores)
    worker *= slowdown
    shard = crowding * rows.shard_seconds(costs, setup) * workers / setup.shards
    exchange = _exchange(costs, setup, local)
    slowest = slowdown * _lateness(costs, setup, local)
    cores = (local * (worker + exchange.cpu) + served_here * shard) / setup.cores
    waited = slowest + exchange.latency + exchange.bytes
    held = slowdown * costs.lock_seconds if setup.sharing > 1 else 0.0
    network = setup.gbit * _BYTES_PER_GBIT
    remote = setup.rows not in ("auto", "shared") and network > 0
    parts = {
        "worker": worker,
        "cores": cores,
        "slowest worker": slowest,
        "exchange latency": exchange.latency,
        "exchange bytes": exchange.bytes,
        "service": shard,
        "row lock": setup.sharing * held,
        "worker network": local * rows.bytes / network if remote else 0.0,
        "service network": workers * rows.bytes / setup.shards / network if remote else 0.0,
    }
    limits = [parts[name] for name in ("service", "row lock", "worker network", "service network")]
    queue = _lock_wait(setup.sharing, held, max(max(worker, cores) + waited, *limits))
    seconds = max(max(worker, cores) + waited + queue, *limits)
    return Prediction(
        examples_per_sec=workers * costs.batch_size / seconds,
        step_seconds=seconds,
        parts=parts,
        bottleneck=max(parts, key=lambda name: parts[name]),
        row_lock_share=(held + queue) / seconds,
    )


@dataclasses.dataclass(frozen=True)
class _Rows:
    """The rows that a worker exchanges with the service in a step.

    Attributes:
      served: whether there is a service.
      sent: u, the rows sent.
      checked: c, the rows checked.
      back: v, the rows back.
      requests: q, the requests to each shard.
      bytes: the larger number of the bytes sent and the bytes received.
    """

    served: bool = False
    sent: float = 0.0
    checked: float = 0.0
    back: float = 0.0
    requests: float = 0.0
    bytes: float = 0.0

    @classmethod
    def of(cls, costs: Costs, setup: Setup) -> "_Rows":
        workers, sharing = setup.workers, setup.sharing
        if setup.rows == "shared" or (setup.rows == "auto" and workers == 1):
            return cls()
        window, copies, distinct = sharing * setup.sync_steps, -(-workers // sharing), costs.distinct
        one = distinct(window)
        sent = one / window
        checked = (distinct(2 * window) - one) / window if copies > 1 else 0.0
        back = max(one + distinct((copies - 1) * window) - distinct(copies * window), 0.0) / window
        asked = KEY_BYTES + VERSION_BYTES
        up = sent * (asked + costs.row_bytes) + checked * asked
        down = back * (POSITION_BYTES + costs.row_bytes) + sent * VERSION_BYTES
        down += checked * (VERSION_BYTES + POSITION_BYTES + costs.row_bytes)
        requests = 1 / window + (1 / max(setup.prefetch_batches, 1) if copies > 1 else 0.0)
        return cls(served=True, sent=sent, checked=checked, back=back, requests=requests, bytes=max(up, down))

    def worker_seconds(self, costs: Costs, setup: Setup) -> float:
        return (self.sent + self.checked) * costs.push_seconds + self.requests * setup.shards * costs.request_seconds

    def shard_seconds(self, costs: Costs, setup: Setup) -> float:
        """Returns the seconds of all shards for a step of one worker."""
        rows = self.sent * costs.shard_push_seconds + self.checked * costs.shard_pull_seconds
        return rows + self.requests * setup.shards * costs.shard_request_seconds


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """Seconds of the exchange of the dense variables in a step.

    Attributes:
      latency: wall time that does not depend on the number of bytes.
      bytes: wall time that depends on the number of bytes.
      cpu: CPU time of a worker that adds to its compute.
    """

    latency: float = 0.0
    bytes: float = 0.0
    cpu: float = 0.0


def _exchange(costs: Costs, setup: Setup, local: int) -> _Exchange:
    workers, every = setup.workers, setup.dense_sync_steps
    if workers == 1:
        return _Exchange()
    sent = costs.dense_bytes if every == 1 else costs.state_bytes
    if setup.in_memory and setup.machines == 1:
        crowded = local > setup.cores
        meeting = max(costs.meeting_seconds, costs.crowded_meeting_seconds) if crowded else costs.meeting_seconds
        copying = sent / costs.memory_bytes_per_sec * max(local / setup.cores, 1)
        return _Exchange(latency=meeting / every, bytes=copying / every)  # Its CPU time is part of the wall time.
    link = costs.link_bytes_per_sec
    if setup.machines > 1 and setup.gbit:  # The slowest links of the ring are between machines.
        link = min(link, setup.gbit * _BYTES_PER_GBIT)
    hop = costs.hop_seconds if local <= setup.cores else max(costs.hop_seconds, costs.crowded_hop_seconds)
    return _Exchange(
        latency=2 * (workers - 1) * hop / every,
        bytes=2 * (workers - 1) / workers * sent / link / every,
        cpu=costs.exchange_seconds / every,
    )


def _lock_wait(sharing: int, held: float, step: float) -> float:
    """Returns how long a worker waits for the row lock if each worker holds it for `held` of `step` seconds."""
    busy = (sharing - 1) * held / step  # Below 1, as `step` is at least the time in which all workers hold the lock.
    return held * busy / (2 * (1 - busy))


def _lateness(costs: Costs, setup: Setup, local: int) -> float:
    """Returns the seconds by which the slowest core exceeds the mean step; all workers wait for it."""
    ends = min(setup.workers, setup.machines * setup.cores)
    if ends == 1:
        return 0.0
    of_largest = statistics.NormalDist().inv_cdf((ends - 0.375) / (ends + 0.25))
    return of_largest * costs.deviation_seconds * math.sqrt(max(local / setup.cores, 1) / setup.dense_sync_steps)


def _sharing(costs: Costs, local: int, cores: int) -> float:
    """Returns the slowdown of `local` workers that take turns on `cores`: linear from one worker on a core to two."""
    return 1 + (costs.sharing - 1) * min(max(local / cores - 1, 0.0), 1.0)


def _crowding(costs: Costs, busy: int, cores: int) -> float:
    """Returns the slowdown of a core while `busy` of `cores` are busy: linear from one core to all."""
    if cores == 1 or costs.cores == 1:
        return 1.0
    return 1 + (costs.crowding - 1) * (busy - 1) / (cores - 1)
