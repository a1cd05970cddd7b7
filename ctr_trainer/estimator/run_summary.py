"""The summary of a training run: the time of each phase over all ranks, and other figures."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ctr_trainer.estimator.advice import advise
from ctr_trainer.estimator.step import TrainingSteps
from ctr_trainer.estimator.train_and_evaluate import TrainResult
from ctr_trainer.estimator.training import Training
from ctr_trainer.estimator.training_hooks import TrainingHooks
from ctr_trainer.ranks import distributed
from ctr_trainer.system.measuring.clock import PHASES, TITLES, TRAINING

_log = logging.getLogger(__name__)


def measured(training: Training, steps: TrainingSteps, hooks: TrainingHooks) -> dict[str, Any]:
    """Returns the measured fields of `TrainResult`. Rank 0 logs the last lines about the service. A collective."""
    clock, feed, config, plan = training.clock, training.feed, training.job.config, training.model.step
    examples = int(distributed.all_sum(np.asarray(feed.examples, np.int64), "train_examples"))
    # All ranks have reached this line, so the service has answered every request of the training.
    for line in hooks.service.lines() if hooks.service else ():
        _log.info(line)
    own = _own_figures(training, hooks)
    gathered = distributed.all_gather(np.array([*own.values()], np.float64), "run_summary")
    figures = dict(zip(own, gathered.reshape(distributed.size(), len(own)).T, strict=True))  # Each is float64[ranks].
    seconds = {name: figures[name] for name in [*PHASES, "exchange", "syncing"]}

    in_training = max(sum(seconds[name].mean() for name in TRAINING), 1e-9)
    shares = {name: each.mean() / in_training for name, each in seconds.items()}
    slowest = max(TRAINING, key=lambda name: shares[name])
    hits, syncs = figures["hits"].sum(), figures["syncs"].sum()
    asked = hits + figures["misses"].sum()
    advice = advise(
        # If one worker syncs for its host, the others wait for it in their exchange.
        {**shares, "sync": figures["sync"].max() / in_training},
        {name: (figures[name] / in_training).tolist() for name in TRAINING},
        (figures["core_waited"] / np.maximum(figures["core_ran"] + figures["core_waited"], 1e-9)).tolist(),
        steps.steps,
        config,
        plan.exchange is not None and plan.steps_wait and distributed.size() > 1,
        on_one_host=distributed.local_size() == distributed.size(),
        has_gpu=bool(tf.config.list_physical_devices("GPU")),
    )

    busy, used = (figures[name][~np.isnan(figures["gpu_busy"])] for name in ("gpu_busy", "gpu_bytes"))
    return {
        "workers": distributed.size(),
        "steps": steps.steps,
        "global_step": steps.step,
        "examples": examples,
        "seconds": round(steps.seconds, 3),
        "examples_per_sec": round(examples / max(steps.seconds, 1e-9), 1),
        "input_wait_seconds": round(clock.seconds["read"], 3),
        "phases": hooks.trace.results(),
        "load": hooks.machine.load(),
        "training_auc": distributed.broadcast_object(hooks.metrics.auc(), "training_auc"),
        "phase_seconds": {name: _over_ranks(each, 3) for name, each in seconds.items()},
        "slowest_phase": slowest,
        "slowest_phase_share": round(shares[slowest], 3),
        "cache_hit_rate": round(hits / asked, 4) if asked else None,
        "bytes_per_sync": round(figures["bytes_synced"].sum() / syncs) if syncs else None,
        "copies_of": feed.embeddings and feed.embeddings.syncs.owner,
        "service_silent_seconds": round(figures["silent"].mean(), 3),
        "resident_bytes": {
            **_over_ranks(figures["resident_bytes"], 0),
            "ranks": [int(each) for each in figures["resident_bytes"]],
        },
        "service_resident_bytes": int(figures["service_bytes"][0]) or None,
        "gpu": {"busy": _over_ranks(busy, 3), "bytes": _over_ranks(used, 0)} if busy.size else None,
        "advice": advice and {"flag": advice.flag, "share": round(advice.share, 3), "why": advice.why},
    }


def _own_figures(training: Training, hooks: TrainingHooks) -> dict[str, float]:
    """Returns a dict of this rank's figures: the seconds of each phase, and the other values that the summary needs."""
    clock, embeddings, machine = training.clock, training.feed.embeddings, hooks.machine
    services = training.store.stats().get("services", {})
    ran, waited = machine.core_seconds()
    return {
        **{name: clock.seconds[name] for name in PHASES},
        "exchange": hooks.trace.share("exchange") * clock.seconds["session"],
        "syncing": embeddings.syncs.latency.total_seconds if embeddings else 0.0,
        **{name: embeddings.total(name) if embeddings else 0 for name in ("hits", "misses", "bytes_synced")},
        # If a host has one copy of the rows, only one of its ranks counts.
        "syncs": embeddings.syncs.latency.total_count if embeddings else 0,
        "silent": training.store.silent_seconds,
        "resident_bytes": machine.resident_bytes,
        "gpu_busy": machine.gpu_busy,
        "gpu_bytes": machine.gpu_bytes,
        "service_bytes": sum(service["resident_bytes"] for service in services.values()),
        "core_ran": ran,
        "core_waited": waited,
    }


def _memory(result: TrainResult) -> str:
    """Returns the log line about memory and GPUs."""

    def megabytes(figures: Mapping[str, float]) -> str:
        most = f" (most {figures['max'] / 1e6:,.0f})" if result["workers"] > 1 else ""
        return f"{figures['mean'] / 1e6:,.0f} MB{most}"

    parts = [f"memory of a worker: {megabytes(result['resident_bytes'])}"]
    if result["service_resident_bytes"]:
        parts.append(f"of the embedding service: {result['service_resident_bytes'] / 1e6:,.0f} MB")
    if gpu := result["gpu"]:
        parts.append(f"of its GPU: {megabytes(gpu['bytes'])}, busy for {gpu['busy']['mean']:.0%} of the time")
    return ", ".join(parts)


def _over_ranks(values: np.ndarray, digits: int) -> dict[str, float]:
    """Returns {`mean`, `max`} of float64[ranks]."""
    rounded = [round(float(value), digits) for value in (values.mean(), values.max())]
    return dict(zip(("mean", "max"), rounded if digits else map(int, rounded), strict=True))


def lines(result: TrainResult) -> list[str]:
    """Returns the lines that rank 0 logs at the end of a run."""
    phases = result["phase_seconds"]

    def seconds(phase: str) -> str:
        most = f" (most {phases[phase]['max']:.1f})" if result["workers"] > 1 else ""
        return f"{phases[phase]['mean']:.1f} s{most}"

    auc = ", ".join(f"{name} {value:.4f}" for name, value in result.training_auc.items())
    said = [
        "trained {steps} steps on {workers} worker{s}: {examples} examples in {seconds:.1f} s, {examples_per_sec:.1f} "
        "examples/sec together".format(**result, s="s" * (result["workers"] > 1))
        + (f"; training {auc}" if auc else ""),
        ("a worker's time, mean over the ranks: " if result["workers"] > 1 else "its time: ")
        + ", ".join(
            f"{'of that ' * (phase == 'exchange')}{TITLES[phase]} {seconds(phase)}"
            for phase in ("read", "lookup", "session", "exchange", "update", "sync", "checkpoint")
            if phase != "exchange" or result["workers"] > 1
        ),
    ]
    if result["cache_hit_rate"] is not None:
        synced = f", {result['bytes_per_sync'] / 1e6:.2f} MB a sync" if result["bytes_per_sync"] else ""
        said.append(f"cache hit rate {result['cache_hit_rate']:.1%}{synced}, of a {result['copies_of']}")
    if result["service_silent_seconds"]:
        said.append(f"the embedding service did not answer for {result['service_silent_seconds']:.1f} s of it")
    said.append(_memory(result))
    said.append(f"slowest phase: {result['slowest_phase']}, {result['slowest_phase_share']:.0%} of the training time")
    advice = result["advice"]
    if advice:
        said.append(
            f"most likely to help: {advice['flag']} ({advice['share']:.0%} of the training time: {advice['why']})"
        )
    return said
