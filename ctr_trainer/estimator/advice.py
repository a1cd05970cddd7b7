"""Finds what is most likely to make a run faster, from the time that each phase of the run took."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import PHASES, TITLES
from ctr_trainer.system.processes import hardware

_FEWEST_STEPS = 100
# Below this batch size, a step on a CPU takes about as long as with more examples.
_SMALL_BATCH = 128
# Up to this speed, float16 gradients are faster: the bytes that they save take longer than the conversion.
_SLOW_GBIT = 1.0


@dataclasses.dataclass(frozen=True)
class Finding:
    """The flag to change, with its new value, or another remedy, and the cause. It saves less than `share`, 0 to 1."""

    share: float
    flag: str
    why: str


@dataclasses.dataclass(frozen=True)
class Circumstances:
    """The measurements and settings of a run that the rules judge.

    All shares are fractions of the training time, averaged over the ranks.

    Attributes:
      shares: the share of each phase of `clock.PHASES`; of `exchange`, when only the exchange of dense gradients was
        running; and of `syncing`, when a sync of the rows was running, concurrently with steps or not.
      exchanges_each_step: whether each step waits for the gradients of all workers.
      has_gpu: whether the dense tower runs on a GPU.
      exchanges_in_memory: whether dense gradients are exchanged through shared memory.
      has_free_core: whether this host has more cores than workers.
      silent: share of the time when the embedding service did not answer.
      has_histories: whether the feature spec has sequences. bfloat16 speeds up models with sequences less.
      batch_size: mean number of examples of a worker's batch.
      core_waits: by rank, the part of the time for which its threads could run that they waited for a core.
      by_rank: dict of phase -> `shares` by rank.
      request_ms, served_ms: mean time of a request to the service as measured by workers and within the service, or 0.
      service_is_here: whether the service runs on this host.
      exchanged_bytes, exchange_ms: bytes of the dense gradients of a step, and the time of their exchange.
    """

    shares: Mapping[str, float]
    steps: int
    workers: int
    on_one_host: bool
    config: RunConfig
    exchanges_each_step: bool = True
    has_gpu: bool = False
    exchanges_in_memory: bool = False
    has_free_core: bool = False
    silent: float = 0.0
    has_histories: bool = False
    batch_size: float = 1024.0
    core_waits: Sequence[float] = (0.0,)
    by_rank: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    request_ms: float = 0.0
    served_ms: float = 0.0
    service_is_here: bool = True
    accumulation_steps: int = 1
    fp16: bool = False
    exchanged_bytes: int = 0
    exchange_ms: float = 0.0


def advise(circumstances: Circumstances) -> Finding | None:
    """Returns the most important `Finding`, or None if no rule's limit is exceeded.

    An overloaded machine, a slow rank and small batches come first, because they lengthen the phases that the other
    rules judge. Among these, the largest share counts. If no rule finds anything, accumulation and the dense tower do.

    Also returns None for a run of fewer than 100 steps, because the costs of the first step outweigh the rest.
    """
    if circumstances.steps < _FEWEST_STEPS:
        return None
    circumstances = _without_silence(circumstances)
    first = next((finding for rule in (_load, _slow_rank, _batch) if (finding := rule(circumstances))), None)
    findings = [first] if first else [finding for rule in _RULES if (finding := rule(circumstances))]
    if findings:
        return max(findings, key=lambda finding: finding.share)
    return _accumulation(circumstances) or _tower(circumstances)


def _without_silence(c: Circumstances) -> Circumstances:
    """Returns the circumstances without the time spent waiting for a silent service, which no flag shortens."""
    waits = {"exchange", "syncing", *(name for name, phase in PHASES.items() if "service" in phase.waits_for)}
    shares = {name: max(share - c.silent * (name in waits), 0.0) for name, share in c.shares.items()}
    return dataclasses.replace(c, shares=shares)


def _load(c: Circumstances) -> Finding | None:
    rank = int(np.argmax(c.core_waits))
    if c.core_waits[rank] <= 0.70:
        return None
    why = "threads that could run waited for a core: end other programs, or start fewer workers or threads"
    return Finding(float(c.core_waits[rank]), f"free cores for rank {rank}" if c.workers > 1 else "free cores", why)


def _slow_rank(c: Circumstances) -> Finding | None:
    names = [name for name in c.by_rank if name in PHASES and "ranks" not in PHASES[name].waits_for]
    if c.workers == 1 or not names:
        return None
    work = np.array([c.by_rank[name] for name in names])  # float64[phases, ranks]
    slowest = int(work.sum(0).argmax())
    more = work[:, slowest] - np.delete(work, slowest, axis=1).mean(1)
    if more.sum() <= 0.25:
        return None
    phase = TITLES[names[int(more.argmax())]]
    why = (
        f"the others wait for it, mostly for its {phase}: give it as free a machine, as near data and as little work "
        "of its own as they have; --profile_steps shows what it does"
    )
    return Finding(float(more.sum()), f"a faster rank {slowest}", why)


def _batch(c: Circumstances) -> Finding | None:
    share = sum(c.shares[name] for name in ("lookup", "feed", "session", "update", "hooks", "loop"))
    if c.batch_size >= _SMALL_BATCH or share <= 0.50:
        return None
    why = (
        f"a step of {c.batch_size:.0f} examples takes about as long as one of 256; there are then fewer steps, so "
        "raise the learning rates, too"
    )
    return Finding(share, "--batch_size=256", why)


def _read(c: Circumstances) -> Finding | None:
    share, ahead = c.shares["read"], c.config.prefetch_batches
    if share <= 0.10:
        return None
    if not ahead:
        return Finding(share, "--prefetch_batches=4", "the training thread reads its batches itself")
    # Prefetching more batches helps only against bursts, so the text names other remedies.
    why = (
        "steps wait for batches; if more prefetched batches do not help, reading is the bottleneck: raise "
        "--num_readers if a core is free, convert the data, or use a faster disk"
    )
    return Finding(share, f"--prefetch_batches={2 * ahead}", why)


def _sync(c: Circumstances) -> Finding | None:
    share, embedding = c.shares["sync"], c.config.embedding
    if share <= 0.05 or c.workers == 1:
        return None
    why = "training waits for syncs of the embedding rows"
    if _can_share(c):
        return Finding(share, "--embedding_service=shared", f"{why}, and workers of one host need none")
    took = f"{why}: a request takes {c.request_ms:.1f} ms, {c.served_ms:.1f} ms of it within the service"
    if not 0 < c.served_ms < 0.5 * c.request_ms:
        why = f"{why}, and the service is the bottleneck"
        if embedding.service == "auto":
            return Finding(share, f"--service_shards={2 * embedding.service_shards}", why)
        return Finding(share, f"--sync_steps={2 * embedding.sync_steps}", f"{why}: or more shards; rows may be staler")
    if c.service_is_here:
        return Finding(share, "cores of its own for the service", f"{took}, which waits for a core or is throttled")
    if embedding.sync_compression == "none":
        return Finding(share, "--sync_compression=fp16", f"{took}: the network is the bottleneck")
    return Finding(share, f"--sync_steps={2 * embedding.sync_steps}", f"{took}: the network is the bottleneck")


def _service(c: Circumstances) -> Finding | None:
    if c.shares["syncing"] <= 0.20 or c.workers == 1 or c.has_free_core or not _can_share(c):
        return None
    why = "the service and its syncs use cores that the steps need, and workers of one host need no service"
    return Finding(c.shares["syncing"], "--embedding_service=shared", why)


def _can_share(c: Circumstances) -> bool:
    """Returns whether the rows can be in shared memory."""
    return c.config.embedding.service == "auto" and c.on_one_host


def _exchange(c: Circumstances) -> Finding | None:
    # If the service has no core of its own, the wait is for the worker that shares its core.
    share, waits = c.shares["exchange"], np.array(c.by_rank.get("exchange", [0.0]))
    if share <= 0.10 or not c.exchanges_each_step or _service(c):
        return None
    why = "steps wait for the exchange of dense gradients"
    if waits.min() < 0.5 * waits.mean():
        why = f"{why}, rank {waits.argmin()} least: it may be slower than the others"
    if c.fp16 and c.on_one_host:
        why = f"{why}, and float16 takes them from the shared memory of this host to Horovod: it is for slow networks"
        return Finding(share, "--nofp16_allreduce", why)
    gbit = 8e-6 * c.exchanged_bytes / c.exchange_ms if c.exchange_ms else 0.0
    if not c.on_one_host and c.exchanged_bytes > 1e6 and gbit < _SLOW_GBIT:
        why = f"{why}: {c.exchanged_bytes / 1e6:.1f} MB in {c.exchange_ms:.0f} ms, so the network is the bottleneck"
        if c.fp16:
            why = f"{why}, also with float16; --accumulation_steps=4 exchanges a quarter, in fewer optimizer steps"
            return Finding(share, "--dense_sync_steps=30", why)
        return Finding(share, "--fp16_allreduce", f"{why}, and float16 has half the bytes")
    # An exchange through shared memory is short: the remaining time is the wait for the slowest worker of each step.
    flag = "--dense_sync_steps=30" if c.exchanges_in_memory else "--overlap_allreduce or --dense_sync_steps=30"
    return Finding(share, flag, f"{why}; see docs/training.md")


def _accumulation(c: Circumstances) -> Finding | None:
    batches, share = c.accumulation_steps, c.shares["exchange"]
    without = batches * share / (1 + (batches - 1) * share)
    if batches == 1 or without > 0.10:
        return None
    why = (
        f"the exchange; of each batch, it would take {without:.0%}, so accumulation saves little, and {batches} times "
        "fewer optimizer steps cost AUC; see docs/benchmarks.md"
    )
    return Finding(share, "--accumulation_steps=1", why)


def _checkpoint(c: Circumstances) -> Finding | None:
    share, every = c.shares["checkpoint"], c.config.checkpoint_steps
    if share <= 0.10 or not 0 < every < c.steps:  # The last checkpoint is always written.
        return None
    return Finding(share, f"--save_checkpoints_steps={5 * every}", "training waits while checkpoints are captured")


def _tower(c: Circumstances) -> Finding | None:
    share = c.shares["session"] - c.shares["exchange"]
    faster = c.config.mixed_precision == "none" and not c.has_gpu and hardware.has_bfloat16()
    # With bfloat16, the steps of DIN took 1.4 times the processor time.
    if share <= 0.50 or not faster or c.has_histories:
        return None
    why = "the dense tower takes it; DeepFM was 1.1 to 1.25 times as fast: benchmarks/settings.py measures it here"
    return Finding(share, "--mixed_precision=bfloat16", why)


_RULES = (_read, _sync, _service, _exchange, _checkpoint)
