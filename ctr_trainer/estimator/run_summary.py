"""What a training run was, and where its time went, over all ranks."""

import dataclasses
import os

import numpy as np
import tensorflow as tf

from ctr_trainer import dense_exchange, distributed, step_plan
from ctr_trainer.embedding.worker_rows import RowTotals
from ctr_trainer.estimator.advice import Circumstances, advise
from ctr_trainer.hooks.exchange_hook import ExchangeHook
from ctr_trainer.hooks.metrics_hook import MetricsHook
from ctr_trainer.hooks.resources_hook import ResourcesHook
from ctr_trainer.phases import PHASES

# Not of training itself.
_BESIDE = ("start", "evaluation")
# What goes on within or beside the phases.
_WITHIN = ("exchange", "syncing")


@dataclasses.dataclass(frozen=True)
class MeasuringHooks:
    """The hooks of a training that a summary asks for their figures.

    Attributes:
      metrics: `MetricsHook`.
      resources: `ResourcesHook`.
      exchange: `ExchangeHook`, which sees no step of a lone worker.
    """

    metrics: MetricsHook
    resources: ResourcesHook
    exchange: ExchangeHook


class RunSummary:
    """Adds up the ranks' figures at the end of a run; made in the training graph's scope.

    Args:
      phases: `Phases` of the training thread.
      feed: the `Feed` of the training.
      config: `RunConfig`.
      hooks: `MeasuringHooks` of the training.
      store: of `open_store`.
    """

    def __init__(self, phases, feed, config, hooks, store):
        self._phases, self._feed, self._config, self._hooks, self._store = phases, feed, config, hooks, store
        plan = step_plan.current()
        self._exchanges_each_step = plan.begin is None and plan.dense_sync_steps == 1 and distributed.size() > 1

    def results(self, steps):
        """-> dict, the same on every rank. A collective.

        `auc` (or `auc/<label>`) is that of the training examples of all ranks, since the start or in the last window.
        `phase_seconds` has by phase the `mean` and the `max` over the ranks; `exchange` is what of `session` only
        the exchange was at work in, estimated by a few steps, and `syncing` how long syncs of the rows were under way,
        most of it beside the steps. `slowest_phase` is by the mean. `cache_hit_rate` is of
        looked up keys; `bytes_per_sync` what one copy of the rows sends and gets from one sync to the next, misses
        included; both are None where there is no service. `service_silent_seconds` is how long it stood still.
        `resident_bytes`
        has the most memory that each rank held, as `ranks`, with its `mean` and `max`, `service_resident_bytes` what
        all shards hold at the end, None without a service. `gpu` has `busy` (a share of the time) and `bytes`, `mean`
        and `max` over the ranks each, or is None without GPUs that NVML can ask. `advice` has `flag`, `share` and
        `why`, or is None.

        Args:
          steps: that the run has made.
        """
        embeddings = self._feed.embeddings
        totals = embeddings.totals() if embeddings else RowTotals()
        syncing = embeddings.sync_latency if embeddings else None
        syncs = syncing.total_count if syncing else 0
        seconds = [self._phases.seconds[phase] for phase in PHASES]
        exchange = self._hooks.exchange.share * self._phases.seconds["session"]
        seconds += [exchange, syncing.total_seconds if syncing else 0.0]
        own = [*seconds, *dataclasses.astuple(totals), syncs, self._store.silent_seconds, *self._resources()]
        own = np.array(own, np.float64)
        ranks = distributed.all_gather(own, "run_summary").reshape(distributed.size(), len(own))
        auc = self._hooks.metrics.auc(distributed.all_sum)

        names = [*PHASES, *_WITHIN]
        mean, most = ranks[:, : len(names)].mean(0), ranks[:, : len(names)].max(0)
        of_phase = {
            name: {"mean": round(a, 3), "max": round(b, 3)} for name, a, b in zip(names, mean, most, strict=True)
        }
        training = sum(mean[i] for i, name in enumerate(PHASES) if name not in _BESIDE)
        shares = {name: mean[i] / max(training, 1e-9) for i, name in enumerate(names)}
        slowest = max((name for name in PHASES if name not in _BESIDE), key=shares.get)
        hits, misses, bytes_synced, syncs, *_ = ranks[:, len(names) :].sum(0)
        silent, resident, gpu_busy, gpu_bytes, of_service = ranks[:, -5:].T
        silent = silent.mean()
        advice = advise(self._circumstances(shares, steps, silent / max(training, 1e-9)))
        return {
            **auc,
            "phase_seconds": of_phase,
            "slowest_phase": slowest,
            "slowest_phase_share": round(shares[slowest], 3),
            "cache_hit_rate": round(hits / (hits + misses), 4) if hits + misses else None,
            "bytes_per_sync": round(bytes_synced / syncs) if syncs else None,
            "service_silent_seconds": round(silent, 3),
            "resident_bytes": {**_over_ranks(resident, 0), "ranks": [int(each) for each in resident]},
            "service_resident_bytes": int(of_service[0]) if of_service[0] else None,
            "gpu": _gpu(gpu_busy, gpu_bytes),
            "advice": advice and {"flag": advice.flag, "share": round(advice.share, 3), "why": advice.why},
        }

    def _resources(self):
        """-> [bytes of this rank's memory, share of the time that its GPU was busy, bytes of that, of all services]."""
        services = self._store.stats().get("services", {})
        of_service = sum(service["resident_bytes"] for service in services.values())
        seen = self._hooks.resources
        return [seen.resident_bytes, seen.gpu_busy, seen.gpu_bytes, of_service]

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
    """-> the line of memory and GPUs."""

    def megabytes(figures):
        most = f" (most {figures['max'] / 1e6:,.0f})" if result["workers"] > 1 else ""
        return f"{figures['mean'] / 1e6:,.0f} MB{most}"

    parts = [f"memory of a worker: {megabytes(result['resident_bytes'])}"]
    if result["service_resident_bytes"]:
        parts.append(f"of the embedding service: {result['service_resident_bytes'] / 1e6:,.0f} MB")
    if gpu := result["gpu"]:
        parts.append(f"of its GPU: {megabytes(gpu['bytes'])}, busy for {gpu['busy']['mean']:.0%} of the time")
    return ", ".join(parts)


def _over_ranks(values, digits):
    """-> {`mean`, `max`} of float64[ranks]."""
    rounded = [round(float(value), digits) for value in (values.mean(), values.max())]
    return dict(zip(("mean", "max"), rounded if digits else map(int, rounded), strict=True))


def _gpu(busy, used):
    """-> what `results` says of the GPUs, of float64[ranks] each; ranks that know nothing of theirs are left out."""
    known = ~np.isnan(busy)
    return {"busy": _over_ranks(busy[known], 3), "bytes": _over_ranks(used[known], 0)} if known.any() else None


def lines(result):
    """-> what rank 0 says of a run at its end, a list of lines.

    Args:
      result: of `Estimator.train`.
    """
    phases = result["phase_seconds"]

    def seconds(phase):
        most = f" (most {phases[phase]['max']:.1f})" if result["workers"] > 1 else ""
        return f"{phases[phase]['mean']:.1f} s{most}"

    auc = ", ".join(f"{name} {value:.4f}" for name, value in result.items() if name.split("/")[0] == "auc")
    said = [
        "trained {steps} steps on {workers} workers: {examples} examples in {seconds:.1f} s, {examples_per_sec:.1f} "
        "examples/sec together".format(**result)
        + (f"; training {auc}" if auc else ""),
        ("a worker's time, mean over the ranks: " if result["workers"] > 1 else "its time: ")
        + ", ".join(
            f"{what} {seconds(phase)}"
            for what, phase in (
                ("input wait", "read"),
                ("lookup", "lookup"),
                ("session", "session"),
                ("of that exchange", "exchange"),
                ("update", "update"),
                ("sync wait", "sync"),
                ("checkpoints", "checkpoint"),
            )
            if phase != "exchange" or result["workers"] > 1
        ),
    ]
    if result["cache_hit_rate"] is not None:
        synced = f", {result['bytes_per_sync'] / 1e6:.2f} MB a sync" if result["bytes_per_sync"] else ""
        said.append(f"cache hit rate {result['cache_hit_rate']:.1%}{synced}")
    if result["service_silent_seconds"]:
        said.append(f"the embedding service stood still for {result['service_silent_seconds']:.1f} s of it")
    said.append(_memory(result))
    said.append(f"slowest phase: {result['slowest_phase']}, {result['slowest_phase_share']:.0%} of the training time")
    advice = result["advice"]
    if advice:
        said.append(
            f"most likely to help: {advice['flag']} ({advice['share']:.0%} of the training time: {advice['why']})"
        )
    said += [f"for a better model: {each['flag']} ({each['why']})" for each in result["quality_advice"]]
    return said
