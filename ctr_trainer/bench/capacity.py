"""Examples/s of a job that nobody has run: the capacities of its parts, and which of them is reached first.

Per step of a worker, with W workers on H machines of C cores (w = W / H on each), S shards, N = --sync_steps,
M = --dense_sync_steps and D(n) of `Costs.distinct`, with L workers that train one copy of the rows (w of a host; 1 if
each worker has its own) and K = W / L copies, whose windows have n = L N steps:

    rows sent       u = D(n) / n
    rows checked    c = (D(2n) - D(n)) / n              those of a window that the one before did not have; 0 if K is 1
    rows back       v = (D(n) + D((K-1)n) - D(Kn)) / n  those that others changed as well: |A & B| = |A| + |B| - |A | B|
    requests        q = 1/n + 1/p                       to each shard: a sync, and a pull every p prefetched batches;
                                                        without the pulls if K is 1
    worker          a = f g (step + host + u push + c pull + q S request)
    a shard         s = f (q W request + u W shard_push + c W shard_pull / ...) / S, one core each
    cores           k = (w a + w x + shards on the machine * s) / C
    exchange        e = 2 (W-1) hop + 2 (W-1)/W bytes / min(link, network of a machine), each M-th step; in the
                        memory of one machine e = meeting + bytes / memory
    slowest worker  z = f g deviation sqrt(max(w / C, 1) / M) max_of(min(W, H C)), by which the last core is late
    network         n = bytes that a machine's workers, or a shard's machine, send or receive / Gbit/s
    row lock        l = f g lock, for which a worker holds it; the others hold it for b = (L - 1) l / t of the time, and
                        a worker waits for it h = l b / (2 (1 - b))

    seconds of a step  t = max(max(a, k) + z + e + h, s, n, L l),     examples/s = W batch_size / t

f is the crowding at as many busy cores, g what it costs to take turns on a core, where workers are more than cores;
max_of(n) is by how many deviations the largest of n normal values exceeds their mean. The exchange adds to the compute,
as every worker waits for the last one; syncs run beside the steps. With one worker and `auto` rows there is no service,
and with `shared` rows none either. Workers that train one copy of the rows take turns at its update.

Caveat: capacities only: but for the row lock, nothing waits in a queue; all workers are alike, no switch is between the
machines. Near a bottleneck's knee, where two parts are equally busy, the truth is below the prediction. The ring's
2 (W-1) hops are Gloo's; NCCL's trees have fewer. Exchanges over machines take the hop of one machine.

Source: the bounds of operational analysis, Denning and Buzen, The operational analysis of queueing network models, ACM
Computing Surveys 10 (3), 1978; the ring: Patarasu and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 69 (2), 2009;
D(n): Heaps, Information Retrieval, 1978, section 7.5; the wait for the row lock: Pollaczek's formula for equal times;
max_of: Blom, Statistical Estimates and Transformed Beta-Variables, 1958.
"""

import dataclasses
import math
import statistics

from ctr_trainer.messages.errors import UserError

KEY_BYTES, VERSION_BYTES, POSITION_BYTES = 8, 4, 8
_BYTES_PER_GBIT = 1e9 / 8


@dataclasses.dataclass(frozen=True)
class Setup:
    """A job and what it runs on.

    Attributes:
      workers: W.
      machines: H; the workers are spread evenly.
      cores: C of a machine; a worker uses one.
      rows: `auto` or `shared`, both for one machine; or `host:port`, whose shards have a core each on other machines.
      host_copies: whether the workers of a machine train one copy of the service's rows; else each has its own.
      shards: S of the service.
      sync_steps, dense_sync_steps: N, M.
      prefetch_batches: p; below 1 as 1.
      in_memory: whether the workers of one machine exchange dense variables in shared memory; of several they do not.
      gbit: Gbit/s of a machine's network, each way; 0 for one that is never the limit.
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

    def __post_init__(self):
        if self.rows in ("auto", "shared") and self.machines > 1:
            raise UserError(
                f"--embedding_service={self.rows} keeps the rows on one machine, and the job has {self.machines}: give "
                "host:port, the service's address"
            )

    @property
    def sharing(self):
        """L: how many workers train one copy of the rows."""
        local = -(-self.workers // self.machines)
        return local if self.host_copies or self.rows == "shared" else 1


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What `predict` finds.

    Attributes:
      examples_per_sec: of all workers together.
      step_seconds: of a step, wall.
      parts: dict of name -> seconds a step that this part alone would allow; the largest is the bottleneck.
      bottleneck: what to give more of, or to do less of, first.
      row_lock_share: of a step, in which a worker waits for the row lock or holds it.
    """

    examples_per_sec: float
    step_seconds: float
    parts: dict[str, float]
    bottleneck: str
    row_lock_share: float


def predict(costs, setup):
    """-> `Prediction`, by the equations at the top of this file.

    Args:
      costs: `Costs`.
      setup: `Setup`.
    """
    workers, rows = setup.workers, _Rows.of(costs, setup)
    local = -(-workers // setup.machines)
    served_here = setup.shards if rows.served and setup.rows == "auto" else 0
    crowding = _crowding(costs, min(local + served_here, setup.cores), setup.cores)
    worker = costs.step_seconds + costs.host_seconds + rows.worker_seconds(costs, setup)
    slowdown = crowding * _sharing(costs, local, setup.cores)
    worker *= slowdown
    shard = crowding * rows.shard_seconds(costs, setup) * workers / setup.shards
    exchange = _exchange(costs, setup, local)
    exchange_cpu = exchange["cpu"]
    slowest = slowdown * _lateness(costs, setup, local)
    cores = (local * (worker + exchange_cpu) + served_here * shard) / setup.cores
    waited = slowest + exchange["latency"] + exchange["bytes"]
    held = slowdown * costs.lock_seconds if setup.sharing > 1 else 0.0
    network = setup.gbit * _BYTES_PER_GBIT
    remote = setup.rows not in ("auto", "shared") and network
    parts = {
        "worker": worker,
        "cores": cores,
        "slowest worker": slowest,
        "exchange latency": exchange["latency"],
        "exchange bytes": exchange["bytes"],
        "service": shard,
        "row lock": setup.sharing * held,
        "worker network": local * rows.bytes / network if remote else 0.0,
        "service network": workers * rows.bytes / setup.shards / network if remote else 0.0,
    }
    limits = [parts[name] for name in ("service", "row lock", "worker network", "service network")]
    queue = _lock_wait(setup.sharing, held, max(max(worker, cores) + waited, *limits))
    seconds = max(max(worker, cores) + waited + queue, *limits)
    rate, lock_share = workers * costs.batch_size / seconds, (held + queue) / seconds
    return Prediction(rate, seconds, parts, max(parts, key=parts.get), lock_share)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """A worker's rows on their way, a step.

    Attributes:
      served: whether they come from a service.
      sent, checked, back: u, c, v.
      requests: q, to each shard.
      bytes: the more of those a worker sends and receives.
    """

    served: bool = False
    sent: float = 0.0
    checked: float = 0.0
    back: float = 0.0
    requests: float = 0.0
    bytes: float = 0.0

    @classmethod
    def of(cls, costs, setup):
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
        return cls(True, sent, checked, back, requests, max(up, down))

    def worker_seconds(self, costs, setup):
        return (self.sent + self.checked) * costs.push_seconds + self.requests * setup.shards * costs.request_seconds

    def shard_seconds(self, costs, setup):
        """-> of all shards, for one worker's step."""
        rows = self.sent * costs.shard_push_seconds + self.checked * costs.shard_pull_seconds
        return rows + self.requests * setup.shards * costs.shard_request_seconds


def _exchange(costs, setup, local):
    """-> seconds a step of the reduction of the dense variables: `latency` and `bytes`, wall, and `cpu` of a worker."""
    workers, every = setup.workers, setup.dense_sync_steps
    if workers == 1:
        return {"latency": 0.0, "bytes": 0.0, "cpu": 0.0}
    sent = costs.dense_bytes if every == 1 else costs.state_bytes
    if setup.in_memory and setup.machines == 1:
        crowded = local > setup.cores
        meeting = max(costs.meeting_seconds, costs.crowded_meeting_seconds) if crowded else costs.meeting_seconds
        copying = sent / costs.memory_bytes_per_sec * max(local / setup.cores, 1)
        return {"latency": meeting / every, "bytes": copying / every, "cpu": 0.0}  # Its CPU is what is waited for.
    link = costs.link_bytes_per_sec
    if setup.machines > 1 and setup.gbit:  # Neighbours in the ring are of one machine but for its two ends.
        link = min(link, setup.gbit * _BYTES_PER_GBIT)
    hop = costs.hop_seconds if local <= setup.cores else max(costs.hop_seconds, costs.crowded_hop_seconds)
    return {
        "latency": 2 * (workers - 1) * hop / every,
        "bytes": 2 * (workers - 1) / workers * sent / link / every,
        "cpu": costs.exchange_seconds / every,
    }


def _lock_wait(sharing, held, step):
    """-> seconds a step that a worker waits for the row lock, which each worker holds for `held` of `step` seconds."""
    busy = (sharing - 1) * held / step  # By the others; below 1, as a step takes at least what all hold it in turn.
    return held * busy / (2 * (1 - busy))


def _lateness(costs, setup, local):
    """-> seconds a step by which the core that ends last is behind the mean, where all workers meet."""
    ends = min(setup.workers, setup.machines * setup.cores)
    if ends == 1:
        return 0.0
    of_largest = statistics.NormalDist().inv_cdf((ends - 0.375) / (ends + 0.25))
    return of_largest * costs.deviation_seconds * math.sqrt(max(local / setup.cores, 1) / setup.dense_sync_steps)


def _sharing(costs, local, cores):
    """-> by how much `local` workers on `cores` are slower for taking turns: linear from one a core to two."""
    return 1 + (costs.sharing - 1) * min(max(local / cores - 1, 0.0), 1.0)


def _crowding(costs, busy, cores):
    """-> by how much a core is slower with `busy` of `cores` at work: linear from 1 core to all."""
    if cores == 1 or costs.cores == 1:
        return 1.0
    return 1 + (costs.crowding - 1) * (busy - 1) / (cores - 1)
