"""The hooks of a training run, in the order in which they must act."""

import tensorflow as tf

from ctr_trainer import distributed
from ctr_trainer.embedding.guard import Guard
from ctr_trainer.hooks.checkpoint_hook import CheckpointHook
from ctr_trainer.hooks.eviction_hook import EvictionHook
from ctr_trainer.hooks.learning_rate_hook import LearningRateHook
from ctr_trainer.hooks.metrics_hook import MetricsHook
from ctr_trainer.hooks.parameter_sync_hook import ParameterSyncHook
from ctr_trainer.hooks.run_status_hook import RunStatusHook
from ctr_trainer.hooks.service_loss_hook import ServiceLossHook
from ctr_trainer.hooks.step_rate_hook import StepRateHook
from ctr_trainer.hooks.summary_hook import SummaryHook
from ctr_trainer.latency import Latency

tf1 = tf.compat.v1


def training_hooks(inputs, spec, store, config, model_dir, save, last_step):
    """-> the session hooks of a training run.

    The input's own hook has come before these: it trains the rows, then `ParameterSyncHook` hands them on, then
    `CheckpointHook` saves what all workers have handed on.

    Args:
      inputs: `DatasetInput` or `BatchInput`, connected.
      spec: the `EstimatorSpec`.
      store: of `open_store`.
      config: `RunConfig`.
      model_dir: for the summaries.
      save: f(session, step) -> path; a collective.
      last_step: where training stops, or None.
    """
    every, scalars, hooks = config.log_step_count_steps, {}, []
    latencies = list(inputs.hook.latencies) if inputs.hook else []
    if inputs.embeddings:
        wait = Latency("OpsSyncWait")
        latencies += [inputs.embeddings.sync_latency, wait]
        steps, offset = config.embedding.sync_steps, 0
        if not config.embedding.strict_sync:  # Which is a collective; else the ranks take turns over the window.
            offset = distributed.rank() * steps // distributed.size()
        hooks.append(ParameterSyncHook(inputs.embeddings, steps, wait, scalars, offset))
    if isinstance(store, Guard):
        hooks.append(ServiceLossHook(store, config.embedding.sync_steps))
    if inputs.embeddings and distributed.is_chief():
        if any(source.config.evicts for source in inputs.embeddings.sources.values()):
            hooks.append(EvictionHook(store, config.embedding.sync_steps))
    hooks.append(CheckpointHook(save, config.save_checkpoints_steps))
    tensors = metric_tensors(inputs, spec)
    if tensors:
        hooks.append(MetricsHook(tensors, scalars, config.auc_window_steps, every_n_steps=every))
    else:
        hooks.append(tf1.train.LoggingTensorHook({"loss": spec.loss}, every_n_iter=every))
    hooks.append(StepRateHook(every_n_steps=every))
    learning_rate = _learning_rate(tf1.get_default_graph())
    if learning_rate is not None:
        hooks.append(LearningRateHook(learning_rate, scalars, every_n_steps=every))
    hooks.append(RunStatusHook(latencies, every_n_secs=config.log_secs))
    if distributed.is_chief() and config.save_summary_steps:
        hooks.append(SummaryHook(model_dir, spec.loss, scalars, every_n_steps=config.save_summary_steps))
    if last_step is not None:
        hooks.append(tf1.train.StopAtStepHook(last_step=last_step))
    return [*hooks, tf1.train.NanTensorHook(spec.loss), *spec.training_hooks]


def metric_tensors(inputs, spec):
    """-> dict of `logits`, `labels`, `weights` for the click metrics; {} for a model without logits.

    Where there are several labels, such a dict by the name of each label that has a prediction `logits/<label>`.
    """
    predictions = spec.predictions if isinstance(spec.predictions, dict) else {}
    if isinstance(inputs.labels, dict):
        found = {name: f"logits/{name}" for name in inputs.labels if f"logits/{name}" in predictions}
        return {name: _of_label(inputs, predictions[key], inputs.labels[name]) for name, key in found.items()}
    if "logits" not in predictions or inputs.labels is None:
        return {}
    return _of_label(inputs, predictions["logits"], inputs.labels)


def _of_label(inputs, logits, labels):
    labels = tf.cast(tf.reshape(labels, [-1]), tf.float32)
    weights = inputs.features["weight"] if inputs.hook else tf.ones_like(labels)
    return {"logits": tf.reshape(logits, [-1]), "labels": labels, "weights": weights}


def _learning_rate(graph):
    """-> the scalar named `learning_rate`, as `TrainOp` makes it, or None."""
    try:
        return graph.get_tensor_by_name("learning_rate:0")
    except KeyError:
        return None
