"""Which flag is most likely to make a run faster, by where its time went."""

import dataclasses

from ctr_trainer.measuring.phases import PHASES
from ctr_trainer.processes import hardware

_FEWEST_STEPS = 100


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one rule has found.

    Attributes:
      share: of the training time that goes where the rule looks, 0 to 1; not what the flag saves.
      flag: to change, with its value.
      why: in words.
    """

    share: float
    flag: str
    why: str


@dataclasses.dataclass(frozen=True)
class Circumstances:
    """What the rules go by.

    Attributes:
      shares: by phase of `phases.PHASES`, its share of the training time, the mean of the ranks.
      exchange: the share of the training time in which nothing but the exchange of dense gradients goes on.
      syncing: the share of it in which a sync of the rows is under way, beside the steps or not.
      steps: how many were made.
      workers: how many, and `on_one_host`: whether all of them are.
      config: `RunConfig`.
      exchanges_each_step: whether a step waits for the gradients of all workers in it.
      has_gpu: whether the dense tower runs on one.
      exchanges_in_memory: whether dense gradients go through memory that the workers share.
      has_free_core: whether this host has more cores than workers.
      has_limits: whether the feature spec has [[limits]].
      silent: the share of the training time in which the embedding service stood still.
      has_histories: whether it has sequences, whose models spend much of a step on what is no matrix product.
    """

    shares: dict
    exchange: float
    syncing: float
    steps: int
    workers: int
    on_one_host: bool
    config: object
    exchanges_each_step: bool = True
    has_gpu: bool = False
    exchanges_in_memory: bool = False
    has_free_core: bool = False
    has_limits: bool = False
    silent: float = 0.0
    has_histories: bool = False


def advise(circumstances):
    """Returns the `Finding` with the largest share of those that are above their rule's limit; None without any.

    Of a run of fewer than 100 steps nothing is said: there the first step's costs outweigh the rest.

    The dense tower is advised on only where nothing else is: it is what a worker is there for.
    """
    if circumstances.steps < _FEWEST_STEPS:
        return None
    circumstances = _without_silence(circumstances)
    findings = [finding for rule in _RULES if (finding := rule(circumstances))]
    return max(findings, key=lambda finding: finding.share) if findings else _tower(circumstances)


def _without_silence(c):
    """Returns the circumstances without the waits for a service that stood still, which no flag ends."""
    shares = {
        phase: max(share - c.silent * ("service" in PHASES[phase].waits_for), 0.0) for phase, share in c.shares.items()
    }
    exchange, syncing = max(c.exchange - c.silent, 0.0), max(c.syncing - c.silent, 0.0)
    return dataclasses.replace(c, shares=shares, exchange=exchange, syncing=syncing)


def _read(c):
    share, ahead = c.shares["read"], c.config.prefetch_batches
    if share <= 0.10:
        return None
    if not ahead:
        return Finding(share, "--prefetch_batches=4", "the training thread reads its batches itself")
    # Twice as many help over bursts only, and more syncs over nothing here: so the flag is said with its limit.
    why = (
        "batches come late; if more of them ahead do not help, reading is the limit: --num_readers where a core is "
        "free, convert the data, a faster disk"
    )
    return Finding(share, f"--prefetch_batches={2 * ahead}", why)


def _rows(c):
    share, embedding = c.shares["lookup"] + c.shares["update"], c.config.embedding
    if share <= 0.10 or not c.has_free_core or embedding.overlap_lookup or embedding.strict_sync or c.has_limits:
        return None
    why = "rows are looked up and trained between the steps, and a core is free to do it beside them; a step late then"
    return Finding(share, "--overlap_lookup", why)


def _sync(c):
    share, embedding = c.shares["sync"], c.config.embedding
    if share <= 0.05 or c.workers == 1:
        return None
    why = "training stands still for syncs of the embedding rows"
    if embedding.strict_sync:
        return Finding(share, "--nostrict_sync", f"{why}, as a strict sync has it")
    if _can_share(c):
        return Finding(share, "--embedding_service=shared", f"{why}, and workers of one host need none")
    if embedding.service == "auto":
        return Finding(share, f"--service_shards={2 * embedding.service_shards}", f"{why}: the service is the limit")
    return Finding(share, f"--sync_steps={2 * embedding.sync_steps}", f"{why}; rows may then be staler")


def _service(c):
    if c.syncing <= 0.20 or c.workers == 1 or c.has_free_core or not _can_share(c):
        return None
    why = "the service and its syncs run on the cores of the steps, and workers of one host need none"
    return Finding(c.syncing, "--embedding_service=shared", why)


def _can_share(c):
    """Returns whether the rows can lie in shared memory, which knows no strict syncs and no restarts."""
    embedding = c.config.embedding
    needs_service = embedding.strict_sync or embedding.service_restarts
    return embedding.service == "auto" and c.on_one_host and not needs_service


def _exchange(c):
    # Where the service has no core of its own, the wait is for the worker whose core it has.
    if c.exchange <= 0.10 or not c.exchanges_each_step or _service(c):
        return None
    why = "steps wait for the exchange of dense gradients"
    # Through shared memory it is short, and what is left is the wait for the slowest worker of each step.
    flag = "--dense_sync_steps=30" if c.exchanges_in_memory else "--overlap_allreduce or --dense_sync_steps=30"
    return Finding(c.exchange, flag, f"{why}; see docs/training.md")


def _checkpoint(c):
    share, every = c.shares["checkpoint"], c.config.checkpoint_steps
    if share <= 0.10 or not 0 < every < c.steps:  # One at the end there is in any case.
        return None
    return Finding(share, f"--save_checkpoints_steps={5 * every}", "it stands still while checkpoints are written")


def _tower(c):
    share = c.shares["session"] - c.exchange
    faster = c.config.mixed_precision == "none" and not c.has_gpu and hardware.has_bfloat16()
    # It made DIN's steps take 1.4 times the processor time.
    if share <= 0.50 or not faster or c.has_histories:
        return None
    why = "the dense tower takes it; DeepFM was 1.1 to 1.25 times as fast: bench settings says what it is here"
    return Finding(share, "--mixed_precision=bfloat16", why)


_RULES = (_read, _rows, _sync, _service, _exchange, _checkpoint)
