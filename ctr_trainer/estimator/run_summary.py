"""What a training run was, and where its time went, over all ranks."""

import dataclasses
import os

import numpy as np
import tensorflow as tf

from ctr_trainer.embedding.memory.row_lock import LockTimes
from ctr_trainer.embedding.store.worker_rows import RowTotals
from ctr_trainer.estimator.advice import Circumstances, advise
from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.hooks.measuring_hooks import ResourcesHook
from ctr_trainer.hooks.metrics_hook import MetricsHook
from ctr_trainer.hooks.run_status_hook import ServiceStatus
from ctr_trainer.hooks.step_trace_hook import StepTraceHook
from ctr_trainer.measuring.phases import PHASES, TITLES, TRAINING
from ctr_trainer.ranks import dense_exchange, distributed


@dataclasses.dataclass(frozen=True)
class MeasuringHooks:
    """The hooks of a training that a summary asks for their figures.

    Attributes:
      metrics: `MetricsHook`.
      resources: `ResourcesHook`.
      trace: `StepTraceHook`, which sees no step of a lone worker without `phase_steps`.
      service: `ServiceStatus`; None for other ranks than 0.
    """

    metrics: MetricsHook
    resources: ResourcesHook
    trace: StepTraceHook
    service: ServiceStatus | None


@dataclasses.dataclass(frozen=True)
class RankFigures:
    """What a rank hands in for the summary, a float each; of all ranks, float64[ranks] each.

    Attributes:
      exchange: seconds of `session` that only the exchange took.
      syncing: seconds in which syncs of the rows were under way.
      hits, misses, bytes_synced: see `RowTotals`.
      syncs: how many this rank has made; one of a host makes those of the host's copies.
      lock_waited, lock_held: seconds of all threads, see `LockTimes`.
      silent: seconds in which the embedding service stood still.
      resident_bytes: of this rank's memory.
      gpu_busy, gpu_bytes: see `ResourcesHook`.
      service_bytes: memory of all shards of the service.
    """

    exchange: float
    syncing: float
    hits: int
    misses: int
    bytes_synced: int
    syncs: int
    lock_waited: float
    lock_held: float
    silent: float
    resident_bytes: int
    gpu_busy: float
    gpu_bytes: float
    service_bytes: int


class RunSummary:
    """Adds up the ranks' figures at the end of a run; made in the training graph's scope.

    Args:
      clock: `Clock` of the training thread.
      feed: the `Feed` of the training.
      config: `RunConfig`.
      hooks: `MeasuringHooks` of the training.
      store: of `open_store`.
    """

    def __init__(self, clock, feed, config, hooks, store):
        self._clock, self._feed, self._config, self._hooks, self._store = clock, feed, config, hooks, store
        plan = notes().step_plan
        self._exchanges_each_step = plan.begin is None and plan.dense_sync_steps == 1 and distributed.size() > 1

    def results(self, steps):
        """Returns a dict, the same on every rank. A collective.

        These are fields of `TrainResult`.

        Args:
          steps: that the run has made.
        """
        own = np.array([*map(self._clock.seconds.get, PHASES), *dataclasses.astuple(self._own())], np.float64)
        ranks = distributed.all_gather(own, "run_summary").reshape(distributed.size(), len(own)).T
        seconds, all_ = dict(zip(PHASES, ranks, strict=False)), RankFigures(*ranks[len(PHASES) :])
        seconds |= {"exchange": all_.exchange, "syncing": all_.syncing}

        training = max(sum(seconds[name].mean() for name in TRAINING), 1e-9)
        shares = {name: each.mean() / training for name, each in seconds.items()}
        slowest = max(TRAINING, key=shares.get)
        hits, asked, syncs = all_.hits.sum(), (all_.hits + all_.misses).sum(), all_.syncs.sum()
        embeddings, silent = self._feed.embeddings, all_.silent.mean()
        advice = advise(self._circumstances(shares, steps, silent / training))

        def lock_percent(seconds):
            return round(100 * seconds.mean() / training, 3) if all_.lock_held.any() else None

        return {
            "training_auc": self._hooks.metrics.auc(distributed.all_sum),
            "phase_seconds": {name: _over_ranks(each, 3) for name, each in seconds.items()},
            "slowest_phase": slowest,
            "slowest_phase_share": round(shares[slowest], 3),
            "cache_hit_rate": round(hits / asked, 4) if asked else None,
            "bytes_per_sync": round(all_.bytes_synced.sum() / syncs) if syncs else None,
            "copies_of": embeddings and embeddings.copies_of,
            "row_lock_wait_percent": lock_percent(all_.lock_waited),
            "row_lock_held_percent": lock_percent(all_.lock_held),
            "service_silent_seconds": round(silent, 3),
            "resident_bytes": {
                **_over_ranks(all_.resident_bytes, 0),
                "ranks": [int(each) for each in all_.resident_bytes],
            },
            "service_resident_bytes": int(all_.service_bytes[0]) or None,
            "gpu": _gpu(all_.gpu_busy, all_.gpu_bytes),
            "advice": advice and {"flag": advice.flag, "share": round(advice.share, 3), "why": advice.why},
        }

    def _own(self):
        """Returns the `RankFigures` of this rank."""
        embeddings, seen = self._feed.embeddings, self._hooks.resources
        totals = embeddings.totals() if embeddings else RowTotals()
        lock = embeddings.lock_times() if embeddings else LockTimes()
        services = self._store.stats().get("services", {})
        return RankFigures(
            exchange=self._hooks.trace.share("exchange") * self._clock.seconds["session"],
            syncing=embeddings.sync_latency.total_seconds if embeddings else 0.0,
            hits=totals.hits,
            misses=totals.misses,
            bytes_synced=totals.bytes_synced,
            syncs=embeddings.sync_latency.total_count if embeddings else 0,
            lock_waited=lock.waited,
            lock_held=lock.held,
            silent=self._store.silent_seconds,
            resident_bytes=seen.resident_bytes,
            gpu_busy=seen.gpu_busy,
            gpu_bytes=seen.gpu_bytes,
            service_bytes=sum(service["resident_bytes"] for service in services.values()),
        )

    def _circumstances(self, shares, steps, silent):
        inputs = self._feed.inputs
        return Circumstances(
            {name: shares[name] for name in PHASES},
            shares["exchange"],
            shares["syncing"],
            steps,
            distributed.size(),
            distributed.local_size() == distributed.size(),
            self._config,
            self._exchanges_each_step,
            bool(tf.config.list_physical_devices("GPU")),
            dense_exchange.is_in_memory(),
            (os.cpu_count() or 1) > distributed.local_size(),
            bool(inputs.fed and inputs.features.spec.limits),
            silent,
            inputs.fed and any(f.combiner == "none" for f in inputs.features.spec.sparse),
        )


def _memory(result):
    """Returns the line of memory and GPUs."""

    def megabytes(figures):
        most = f" (most {figures['max'] / 1e6:,.0f})" if result["workers"] > 1 else ""
        return f"{figures['mean'] / 1e6:,.0f} MB{most}"

    parts = [f"memory of a worker: {megabytes(result['resident_bytes'])}"]
    if result["service_resident_bytes"]:
        parts.append(f"of the embedding service: {result['service_resident_bytes'] / 1e6:,.0f} MB")
    if gpu := result["gpu"]:
        parts.append(f"of its GPU: {megabytes(gpu['bytes'])}, busy for {gpu['busy']['mean']:.0%} of the time")
    return ", ".join(parts)


def _row_lock(result):
    """Returns the line about the lock of the rows."""
    return (
        "the lock of the embedding rows: a worker waits for it {row_lock_wait_percent:.2f}% and holds it "
        "{row_lock_held_percent:.2f}% of the training time".format(**result)
    )


def _over_ranks(values, digits):
    """Returns {`mean`, `max`} of float64[ranks]."""
    rounded = [round(float(value), digits) for value in (values.mean(), values.max())]
    return dict(zip(("mean", "max"), rounded if digits else map(int, rounded), strict=True))


def _gpu(busy, used):
    """Returns `TrainResult.gpu`, from float64[ranks] each; ranks whose GPU is unknown are left out."""
    known = ~np.isnan(busy)
    return {"busy": _over_ranks(busy[known], 3), "bytes": _over_ranks(used[known], 0)} if known.any() else None


def lines(result):
    """Returns what rank 0 says of a run at its end, a list of lines.

    Args:
      result: of `Estimator.train`.
    """
    phases = result["phase_seconds"]

    def seconds(phase):
        most = f" (most {phases[phase]['max']:.1f})" if result["workers"] > 1 else ""
        return f"{phases[phase]['mean']:.1f} s{most}"

    auc = ", ".join(f"{name} {value:.4f}" for name, value in result.training_auc.items())
    said = [
        "trained {steps} steps on {workers} workers: {examples} examples in {seconds:.1f} s, {examples_per_sec:.1f} "
        "examples/sec together".format(**result)
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
        said.append(f"the embedding service stood still for {result['service_silent_seconds']:.1f} s of it")
    if result["row_lock_held_percent"] is not None:
        said.append(_row_lock(result))
    said.append(_memory(result))
    said.append(f"slowest phase: {result['slowest_phase']}, {result['slowest_phase_share']:.0%} of the training time")
    advice = result["advice"]
    if advice:
        said.append(
            f"most likely to help: {advice['flag']} ({advice['share']:.0%} of the training time: {advice['why']})"
        )
    return said
