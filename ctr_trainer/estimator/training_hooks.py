"""The hooks of a training run, which check, log and measure its steps."""

import contextlib
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.embeddings import Embeddings
from ctr_trainer.estimator.evaluation import metric_tensors
from ctr_trainer.estimator.hooks.ending_hooks import EqualBatchesHook, FiniteLossHook
from ctr_trainer.estimator.hooks.log_hooks import MetricLines, MetricsFile, Summaries, TrainingProgress
from ctr_trainer.estimator.hooks.measuring_hooks import MachineHook, PhaseHook, RunStatusHook, ServiceStatus
from ctr_trainer.estimator.hooks.metrics_hook import EventWindows, LineTaker, MetricsHook
from ctr_trainer.estimator.hooks.profile_hook import ProfileHook
from ctr_trainer.estimator.run_length import EverySeconds
from ctr_trainer.estimator.training import Training
from ctr_trainer.models.metrics.click_metrics import WorkerFigures
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import GRAPH_NAMES
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.measuring.latency import no_gpu, open_gpu

_log = logging.getLogger(__name__)
_PROGRESSIVE = (
    "auc in the lines of steps is progressive: each training example is scored before the model learns from it"
)


@dataclasses.dataclass(frozen=True)
class TrainingHooks:
    """The session hooks of a training.

    Attributes:
      all: the hooks, in the order in which a session calls them.
      batches: compares the batches of the ranks; None if there is nothing to compare.
      trace: traces no step of a single worker without `profile_steps`.
      service: None on ranks other than 0.
    """

    all: list[tf1.train.SessionRunHook]
    metrics: MetricsHook
    batches: EqualBatchesHook | None
    machine: MachineHook
    trace: ProfileHook
    service: ServiceStatus | None


def training_hooks(
    training: Training,
    status_lines: Sequence[Callable[[], str]] = (),
    others: Sequence[tf1.train.SessionRunHook] = (),
) -> TrainingHooks:
    """Makes the session hooks of a training, among the `others` of the program. A collective.

    `status_lines` are functions f() -> a line, which are logged together with the latencies.
    """
    feed, model, store, clock = training.feed, training.model, training.store, training.clock
    config, spec, model_dir = training.job.config, model.spec, training.job.staging.path
    batches = None
    if distributed.size() > 1 and not model.inputs.fed and config.equal_inputs == "error":
        batches = EqualBatchesHook(model.inputs.features, model.inputs.labels, model.inputs.weight)
    scored = metric_tensors(model.inputs, spec)
    if scored and distributed.is_chief():
        _log.info("%s", _PROGRESSIVE)
    windows = None
    if feed.event_seconds and config.validation_window_secs:
        windows = EventWindows(feed.event_seconds, config.validation_window_secs)
    learning_rate = None
    with contextlib.suppress(KeyError):  # `TrainOp` creates it.
        learning_rate = tf1.get_default_graph().get_tensor_by_name("learning_rate:0")
    metrics = MetricsHook(
        scored,
        spec.loss,
        _line_takers(training),
        clock,
        config.log_steps,
        _merge_of_ranks(clock) if distributed.size() > 1 else lambda vector: (vector[None], ""),
        weight=None if scored else model.inputs.weight,
        own=functools.partial(_worker_figures, feed.embeddings),
        examples=(lambda: feed.examples) if model.inputs.fed else None,  # Else a step counts after its hooks.
        learning_rate=learning_rate,
        of_windows=feed.is_live,
        event_windows=windows,
    )
    has_gpu, profiles = bool(tf.config.list_physical_devices("GPU")), bool(config.profile_steps)
    first, last = config.profile_steps or (None, None)
    read_gpu = open_gpu(distributed.local_rank()) if has_gpu else no_gpu
    machine = MachineHook(store, read_gpu, config.log_steps, load_from=last)
    as_in_graph = config.log_names == GRAPH_NAMES
    summaries = model_dir if config.summary_steps else None
    service = ServiceStatus(store, as_in_graph, summaries) if distributed.is_chief() else None
    latencies = [*feed.latencies, *clock.latencies]
    status = RunStatusHook(latencies, EverySeconds(config.log_secs), status_lines, service, as_in_graph)
    directory = os.path.join(model_dir, "profile", f"rank{distributed.rank()}")
    trace = ProfileHook(clock, first, last, has_gpu, directory if profiles else None)
    own = [FiniteLossHook(spec.loss), *(spec.training_hooks or ())]
    own += (spec.training_chief_hooks or ()) if distributed.is_chief() else ()
    own += [batches] if batches else []
    own += [metrics, machine, status]
    own += [trace] if distributed.size() > 1 or profiles else []
    hooks = [PhaseHook(clock, "hooks", "hooks"), *own, *others, PhaseHook(clock, "session", "loop")]
    return TrainingHooks(hooks, metrics, batches, machine, trace, service)


def _worker_figures(embeddings: Embeddings | None) -> WorkerFigures:
    """Returns the current figures of this worker, without its rates."""
    if embeddings is None or embeddings.syncs.wait_ms is None:
        return WorkerFigures()
    hits, misses, syncs = embeddings.total("hits"), embeddings.total("misses"), embeddings.syncs
    return WorkerFigures(sync_ms=1000 * syncs.seconds, sync_wait_ms=syncs.wait_ms, hits=hits, misses=misses)


def _merge_of_ranks(clock: Clock) -> Callable[[np.ndarray], tuple[np.ndarray, str]]:
    """Returns `merge` of a `MetricsHook`: on rank 0 the vectors of all ranks, on others their own. A collective."""

    def merge(vector: np.ndarray) -> tuple[np.ndarray, str]:
        with clock.within("dense_sync"):
            of_ranks = distributed.all_gather(vector, "figures").reshape(distributed.size(), -1)
        if not distributed.is_chief():
            return vector[None], f"rank {distributed.rank()}"
        return of_ranks, f"{distributed.size()} workers"

    distributed.all_gather(np.zeros(1), "figures")  # Creates the graph and session of this collective before the steps.
    return merge


def _line_takers(training: Training) -> list[LineTaker]:
    """Returns the objects that show and store the log lines of the training on this rank. The first one logs them."""
    job, feed, directory = training.job, training.feed, training.job.staging.path
    takers: list[LineTaker] = [MetricLines(job.config.log_names, feed.event_seconds, distributed.is_chief())]
    if not distributed.is_chief():
        return takers
    takers.append(MetricsFile(directory))
    if job.config.summary_steps:
        takers.append(Summaries(directory, every_n_steps=job.config.summary_steps))
    takers += [job.config.tracker] if job.config.tracker else []
    progress = TrainingProgress(
        clock=training.clock,
        length=training.model.step.run_length,
        epoch=feed.epochs_after,
        epochs=feed.inputs.epochs,
        stops_early=job.stops_early,
    )
    return [*takers, progress]
