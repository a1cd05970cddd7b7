"""Finds the setting that is most likely to make a run faster, from the time that each phase of the run took."""

import dataclasses
from collections.abc import Mapping

from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import PHASES
from ctr_trainer.system.processes import hardware

_FEWEST_STEPS = 100


@dataclasses.dataclass(frozen=True)
class Finding:
    """The flag to change, with its new value, and the reason. The change saves less than `share`, from 0 to 1."""

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
      has_limits: whether the feature spec has [[limits]].
      silent: share of the time when the embedding service did not answer.
      has_histories: whether the feature spec has sequences. bfloat16 speeds up models with sequences less.
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
    has_limits: bool = False
    silent: float = 0.0
    has_histories: bool = False


def advise(circumstances: Circumstances) -> Finding | None:
    """Returns the `Finding` with the largest share, or None if no rule's limit is exceeded.

    Also returns None for a run of fewer than 100 steps, because the costs of the first step outweigh the rest. The rule
    about the dense tower applies only if no other rule finds anything.
    """
    if circumstances.steps < _FEWEST_STEPS:
        return None
    circumstances = _without_silence(circumstances)
    findings = [finding for rule in _RULES if (finding := rule(circumstances))]
    return max(findings, key=lambda finding: finding.share) if findings else _tower(circumstances)


def _without_silence(c: Circumstances) -> Circumstances:
    """Returns the circumstances without the time spent waiting for a silent service, which no flag shortens."""
    waits = {"exchange", "syncing", *(name for name, phase in PHASES.items() if "service" in phase.waits_for)}
    shares = {name: max(share - c.silent * (name in waits), 0.0) for name, share in c.shares.items()}
    return dataclasses.replace(c, shares=shares)


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


def _rows(c: Circumstances) -> Finding | None:
    share, embedding = c.shares["lookup"] + c.shares["update"], c.config.embedding
    if share <= 0.10 or not c.has_free_core or embedding.overlap_lookup or c.config.deterministic or c.has_limits:
        return None
    why = "rows are looked up and trained between steps; a free core can do so during steps, on rows one step older"
    return Finding(share, "--overlap_lookup", why)


def _sync(c: Circumstances) -> Finding | None:
    share, embedding = c.shares["sync"], c.config.embedding
    if share <= 0.05 or c.workers == 1:
        return None
    why = "training waits for syncs of the embedding rows"
    if _can_share(c):
        return Finding(share, "--embedding_service=shared", f"{why}, and workers of one host need none")
    if embedding.service == "auto":
        return Finding(
            share, f"--service_shards={2 * embedding.service_shards}", f"{why}, and the service is the bottleneck"
        )
    return Finding(share, f"--sync_steps={2 * embedding.sync_steps}", f"{why}; rows may then be staler")


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
    if c.shares["exchange"] <= 0.10 or not c.exchanges_each_step or _service(c):
        return None
    why = "steps wait for the exchange of dense gradients"
    # An exchange through shared memory is short: the remaining time is the wait for the slowest worker of each step.
    flag = "--dense_sync_steps=30" if c.exchanges_in_memory else "--overlap_allreduce or --dense_sync_steps=30"
    return Finding(c.shares["exchange"], flag, f"{why}; see docs/training.md")


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
    why = "the dense tower takes it; DeepFM was 1.1 to 1.25 times as fast: bench settings measures it here"
    return Finding(share, "--mixed_precision=bfloat16", why)


_RULES = (_read, _rows, _sync, _service, _exchange, _checkpoint)
