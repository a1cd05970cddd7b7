"""Finds what is most likely to make a run faster, from the time of each phase, or a model better, from evaluations."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import PHASES, TITLES
from ctr_trainer.system.processes import hardware

_FEWEST_STEPS = 100
_WORTH = 0.002  # A smaller relative change of the validation loss is within the noise of an evaluation.
_LEAST = 0.10  # A phase with a smaller share of the training time is not worth a change.


class Finding(NamedTuple):
    """The flag to change, with its new value, or another remedy, and the cause. It saves less than `share`, 0 to 1."""

    share: float
    flag: str
    why: str


def advise(
    shares: Mapping[str, float],
    by_rank: Mapping[str, Sequence[float]],
    core_waits: Sequence[float],
    steps: int,
    config: RunConfig,
    waits: bool,
    *,
    on_one_host: bool,
    has_gpu: bool,
) -> Finding | None:
    """Returns the most important `Finding`, or None if no phase takes long.

    An overloaded machine and a slow rank come first, because they lengthen the phases of all ranks. Then the largest
    share counts. If it is small, the dense tower may be faster with bfloat16.

    Args:
      shares: dict of phase -> its part of the training time, the mean over the ranks, for the phases of `clock.PHASES`
        and for `exchange`, when only the exchange of dense gradients was running.
      by_rank: dict of phase -> the same by rank.
      core_waits: by rank, the part of the time for which its threads could run that they waited for a core.
      steps: number of steps; of fewer than 100, the first one decides, so there is no advice.
      waits: whether the workers wait at each step for the exchange of dense gradients.
    """
    if steps < _FEWEST_STEPS:
        return None
    rank = int(np.argmax(core_waits))
    if core_waits[rank] > 0.70:
        flag = f"free cores for rank {rank}" if len(core_waits) > 1 else "free cores"
        why = "threads that could run waited for a core: end other programs, or start fewer workers or threads"
        return Finding(float(core_waits[rank]), flag, why)
    if slow := _slow_rank(by_rank):
        return slow
    several, embedding, every = len(core_waits) > 1, config.embedding, config.checkpoint_steps
    findings = [
        Finding(
            shares["read"],
            f"--prefetch_batches={2 * config.prefetch_batches or 4}",
            "steps wait for batches; if more prefetched batches do not help, reading is the bottleneck: raise "
            "--num_readers if a core is free, convert the data, or use a faster disk",
        )
    ]
    if several:
        why = "training waits for syncs of the embedding rows"
        flag, more = f"--sync_steps={2 * embedding.sync_steps}", "; rows may be staler, and more shards help too"
        if embedding.service == "auto" and on_one_host:
            flag, more = "--embedding_service=shared", ", and workers of one host need none"
        findings.append(Finding(shares["sync"], flag, why + more))
    if embedding.disk.table_memory:
        why = "lookups wait for rows on disk: a faster disk helps too, and more prefetched batches read earlier"
        findings.append(Finding(shares["lookup"], "a larger --table_memory", why))
    if waits:
        # An exchange through shared memory is short: most of its time is the wait for the slowest worker of each step.
        why = "steps wait for the exchange of dense gradients; see docs/training.md"
        findings.append(Finding(shares["exchange"], "--dense_sync_steps=30", why))
    if 0 < every < steps:  # The last checkpoint is always written.
        why = "training waits while checkpoints are captured"
        findings.append(Finding(shares["checkpoint"], f"--save_checkpoints_steps={5 * every}", why))
    largest = max(findings, key=lambda finding: finding.share)
    if largest.share > _LEAST:
        return largest
    tower = shares["session"] - shares["exchange"]
    if tower > 0.50 and config.mixed_precision == "none" and not has_gpu and hardware.has_bfloat16():
        why = "the dense tower takes it; DeepFM was 1.1 to 1.25 times as fast: benchmarks/settings.py measures it here"
        return Finding(tower, "--mixed_precision=bfloat16", why)
    return None


def about_quality(evaluations: Sequence[Mapping[str, Any]], keeps_best: bool) -> str:
    """Returns a line of advice on a model, from all its evaluations in ascending order; "" if they show no problem.

    `keeps_best` says whether the best checkpoint is kept.
    """
    name = "logloss" if evaluations and "logloss" in evaluations[0] else "loss"
    losses = [(each[name], each["step"]) for each in evaluations if np.isfinite(each.get(name, np.nan))]
    if len(losses) < 2:
        return "evaluated once: more epochs, with an evaluation after each, show whether it improves" if losses else ""
    (best, at), (last, end), before = min(losses), losses[-1], min(losses[:-1])[0]
    title = "validation log loss" if name == "logloss" else "validation loss"
    if last > best * (1 + _WORTH):
        remedy = "raise --embedding_l2 or --dropout, or lower the learning rates"
        remedy += "" if keeps_best else "; give --best_metric to keep the best checkpoint"
        return f"{title} was best at step {at} of {end} ({best:.5f}, at the end {last:.5f}): it overfits; {remedy}"
    if last < before * (1 - _WORTH):
        return f"{title} still fell at the end (step {end}, {before:.5f} to {last:.5f}): train longer"
    return ""


def _slow_rank(by_rank: Mapping[str, Sequence[float]]) -> Finding | None:
    names = [name for name in by_rank if name in PHASES and "ranks" not in PHASES[name].waits_for]
    work = np.array([by_rank[name] for name in names])  # float64[phases, ranks]
    if work.shape[-1] < 2:
        return None
    slowest = int(work.sum(0).argmax())
    more = work[:, slowest] - np.delete(work, slowest, axis=1).mean(1)
    if more.sum() <= 0.25:
        return None
    why = (
        f"the others wait for it, mostly for its {TITLES[names[int(more.argmax())]]}: give it as free a machine, as "
        "near data and as little work of its own as they have; --profile_steps shows what it does"
    )
    return Finding(float(more.sum()), f"a faster rank {slowest}", why)
