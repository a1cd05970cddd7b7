"""The hooks of a training run."""

import functools
import logging
import os
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.embeddings import Embeddings
from ctr_trainer.estimator.feed import Feed, GraphInput
from ctr_trainer.estimator.hooks.ending_hooks import EqualBatchesHook, FiniteLossHook
from ctr_trainer.estimator.hooks.log_hooks import MetricLines, MetricsFile, StepRate, Summaries, TrainingProgress
from ctr_trainer.estimator.hooks.measuring_hooks import (
    LoadHook,
    ResourcesHook,
    RunStatusHook,
    ServiceStatus,
    SessionClockHook,
)
from ctr_trainer.estimator.hooks.metrics_hook import EventWindows, LineTaker, MergedLines, MetricsHook, OwnLines
from ctr_trainer.estimator.hooks.periods import EventClock, EverySeconds, EverySteps, SecondsOfChief
from ctr_trainer.estimator.hooks.profile_hook import ProfileHook
from ctr_trainer.estimator.hooks.saving_hooks import CheckpointHook
from ctr_trainer.estimator.hooks.step_trace_hook import StepTraceHook
from ctr_trainer.estimator.hooks.sync_hooks import DenseSyncHook, EvictionHook, RowSyncHook
from ctr_trainer.estimator.run_summary import MeasuringHooks
from ctr_trainer.estimator.training import Training
from ctr_trainer.graph_notes.estimator_spec import EstimatorSpec
from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.models.metrics import click_metrics
from ctr_trainer.models.metrics.click_metrics import WorkerFigures, metric_name
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import GRAPH_NAMES, RunConfig
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.measuring.resources import no_gpu, open_gpu

_log = logging.getLogger(__name__)
_PROGRESSIVE = (
    "auc in the lines of steps is progressive: each training example is scored before the model learns from it"
)
# With several workers and without `phase_steps`: number of first steps to skip, and steps between traced steps.
_FIRST_STEPS, _EXCHANGE_STEPS = 20, 1000
# Seconds between two padding batches while a stream is quiet.
_QUIET_STEP_SECONDS = 2.0


def training_hooks(
    training: Training, status_lines: Sequence[Callable[[], str]] = ()
) -> tuple[list[tf1.train.SessionRunHook], MeasuringHooks]:
    """Returns the session hooks of a training, and the hooks among them that measure. A collective.

    Each hook declares the phase to which its time is added, and its place among the other hooks, see `Order`. The
    `status_lines`, functions f() -> a line, are logged together with the latencies.
    """
    feed, spec, store, clock = training.feed, training.spec, training.store, training.clock
    config, model_dir = training.job.config, training.job.staging.path
    hooks = [training.steps, SessionClockHook(clock), *feed.hooks, FiniteLossHook(spec.loss)]
    hooks += spec.training_hooks or ()
    hooks += (spec.training_chief_hooks or ()) if distributed.is_chief() else ()
    if distributed.size() > 1 and not feed.inputs.fed and config.equal_inputs == "error":
        hooks.append(EqualBatchesHook(feed.inputs.features, feed.inputs.labels, feed.inputs.weight))
    sync = None
    if feed.embeddings:
        sync = _sync(feed.embeddings, config, clock)
        hooks.append(sync)
        if distributed.is_chief() and any(rows.config.evicts for rows in feed.embeddings.rows.values()):
            hooks.append(EvictionHook(store, config.embedding.sync_steps, clock))
    dense_sync_steps = notes().step_plan.dense_sync_steps
    if dense_sync_steps > 1:
        hooks.append(DenseSyncHook(training.step.settle, dense_sync_steps, clock))
    hooks.append(CheckpointHook(training.save, checkpoint_period(config, feed), clock))
    scored = metric_tensors(feed.inputs, spec)
    if scored and distributed.is_chief():
        _log.info("%s", _PROGRESSIVE)
    windows = None
    if feed.event_seconds and config.validation_window_secs:
        windows = EventWindows(feed.event_seconds, config.validation_window_secs)
    metrics = MetricsHook(
        scored,
        spec.loss,
        _line_takers(training),
        clock,
        _lines(),
        every_n_steps=config.log_steps,
        weight=None if scored else feed.inputs.weight,
        own=functools.partial(_worker_figures, sync, feed.embeddings),
        learning_rate=_learning_rate(),
        of_windows=feed.is_live,
        event_windows=windows,
    )
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    read_gpu = open_gpu(distributed.local_rank()) if has_gpu else no_gpu
    resources = ResourcesHook(read_gpu, every_n_steps=config.log_steps)
    hooks += [metrics, resources]
    as_in_graph = config.log_names == GRAPH_NAMES
    service = ServiceStatus(store, as_in_graph) if distributed.is_chief() else None
    latencies = [*feed.latencies, *clock.latencies]
    hooks.append(RunStatusHook(latencies, status_lines, service, as_in_graph, every_n_secs=config.log_secs))
    if config.phase_steps:
        trace = StepTraceHook(clock, config.phase_steps, config.phase_steps, has_gpu)
    else:  # Measures only the share of the exchange in a step.
        trace = StepTraceHook(clock, _FIRST_STEPS, _EXCHANGE_STEPS)
    if distributed.size() > 1 or config.phase_steps:
        hooks.append(trace)
    load = LoadHook(store, config.phase_steps) if config.phase_steps else None
    hooks += [load] if load else []
    if config.profile_steps:
        directory = os.path.join(model_dir, "profile", f"rank{distributed.rank()}")
        hooks.append(ProfileHook(directory, clock, *config.profile_steps))
    if training.job.last_step is not None:
        hooks.append(tf1.train.StopAtStepHook(last_step=training.job.last_step))
    return hooks, MeasuringHooks(metrics, resources, trace, load, service)


def _sync(embeddings: Embeddings, config: RunConfig, clock: Clock) -> RowSyncHook:
    steps = config.embedding.sync_steps
    if embeddings.is_strict:  # A strict sync is a collective.
        return RowSyncHook(embeddings, steps, clock=clock)
    # Otherwise the ranks' syncs are spread over `steps`. Publications read the service, so its rows must be recent.
    offset = distributed.rank() * steps // distributed.size()
    seconds = config.publish.secs / 2 if config.publish.to and not config.deterministic else None
    return RowSyncHook(embeddings, steps, offset, clock, every_n_secs=seconds)


def _learning_rate() -> tf.Tensor | None:
    """Returns the scalar tensor named `learning_rate`, which `TrainOp` creates; None if there is none."""
    try:
        return tf1.get_default_graph().get_tensor_by_name("learning_rate:0")
    except KeyError:
        return None


def _worker_figures(sync: RowSyncHook | None, embeddings: Embeddings | None) -> WorkerFigures:
    """Returns the current figures of this worker, without its rates."""
    if sync is None or embeddings is None or sync.wait_ms is None:
        return WorkerFigures()
    totals = embeddings.totals()
    return WorkerFigures(
        sync_ms=1000 * embeddings.sync_seconds, sync_wait_ms=sync.wait_ms, hits=totals.hits, misses=totals.misses
    )


def checkpoint_period(config: RunConfig, feed: Feed) -> EverySteps:
    """Returns the period of the checkpoints, which allows for the slow steps of a quiet stream.

    Raises:
      UserError: the period is in event time, but the examples do not come from a stream.
    """
    if config.save_checkpoints_event_secs and not feed.is_live:
        raise config.refused("{save_checkpoints_event_secs}: only a stream has event times; choose another period")
    seconds = config.save_checkpoints_secs or config.save_checkpoints_event_secs
    clock = EventClock(feed.event_seconds) if config.save_checkpoints_event_secs else time.monotonic
    if seconds and distributed.size() == 1:
        return EverySeconds(seconds, clock)
    if seconds:
        all_sum = functools.partial(distributed.all_sum, name="checkpoint_due")
        longest = _QUIET_STEP_SECONDS if feed.is_live else 0.0
        return SecondsOfChief(seconds, distributed.is_chief(), all_sum, clock, longest_step_secs=longest)
    return EverySteps(config.checkpoint_steps)


def _lines() -> OwnLines | MergedLines:
    """Returns the source of this rank's log lines: its own figures or the merged ones of all ranks. A collective."""
    if distributed.size() == 1:
        return OwnLines()

    def add_up(sums: np.ndarray) -> np.ndarray:
        return click_metrics.add_up(distributed.all_gather(sums, "figures", watched=False).reshape(-1, len(sums)))

    add_up(np.zeros(1))  # Creates the graph and session of this collective before the steps.
    return MergedLines(distributed.rank(), distributed.size(), add_up, distributed.watchdog().waiting)


def _line_takers(training: Training) -> list[LineTaker]:
    """Returns the objects that show and store the log lines of the training on this rank. The first one logs them."""
    job, feed, directory = training.job, training.feed, training.job.staging.path
    takers: list[LineTaker] = [MetricLines(job.config.log_names, feed.event_seconds)]
    if not distributed.is_chief():
        return takers
    takers.append(MetricsFile(directory))
    if job.config.summary_steps:
        takers.append(Summaries(directory, every_n_steps=job.config.summary_steps))
    progress = TrainingProgress(
        clock=training.clock,
        draws=job.config.progress,
        examples=_examples_of_a_step(feed.inputs),
        last_step=job.last_step,
        steps=feed.steps,
        epoch=feed.epochs_after,
        epochs=feed.inputs.epochs,
        length=notes().run_length,
    )
    return [*takers, progress, StepRate(training.clock, job.config.log_steps, directory)]


def metric_tensors(inputs: GraphInput, spec: EstimatorSpec) -> dict[str, dict[str, tf.Tensor]]:
    """Returns a dict of label -> `logits`, `labels` and `weights` for its click metrics; {} for a model without logits.

    A model with one label predicts `logits`, and its label is named "". With several, it predicts `logits/<label>`.
    """
    predictions = spec.predictions if isinstance(spec.predictions, dict) else {}
    if inputs.labels is None:
        return {}
    labels = inputs.labels if isinstance(inputs.labels, dict) else {"": inputs.labels}
    tensors = {}
    for label, values in labels.items():
        if metric_name("logits", label) not in predictions:
            continue
        logits = tf.reshape(predictions[metric_name("logits", label)], [-1])
        values = tf.cast(tf.reshape(values, [-1]), tf.float32)
        tensors[label] = {"logits": logits, "labels": values, "weights": inputs.weights(values)}
    return tensors


def _examples_of_a_step(inputs: GraphInput) -> int | None:
    """Returns the number of examples of all workers in a step; None if it is not known."""
    if inputs.batch_size is None:
        return None
    return inputs.batch_size * notes().step_plan.accumulation_steps * distributed.size()
