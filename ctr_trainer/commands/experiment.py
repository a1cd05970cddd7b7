"""From an experiment's flags to its Estimator and its data."""

import logging

import tensorflow as tf

from ctr_trainer.commands.source import open_source
from ctr_trainer.data.class_weight import BALANCED
from ctr_trainer.data.negative_sampling import NegativeSampling
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.table.sparse_optimizers import OptimizerSettings
from ctr_trainer.estimator import EmbeddingConfig, Estimator, EvalSpec, MetricsConfig, RunConfig
from ctr_trainer.estimator.dense_optimizers import DenseOptimizer
from ctr_trainer.estimator.lr_groups import LrGroups
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.estimator.schedules import Schedule
from ctr_trainer.flags import require
from ctr_trainer.flags.training import OF_HOROVOD
from ctr_trainer.hooks.progress_hook import ProgressHook
from ctr_trainer.messages.errors import UserError
from ctr_trainer.models import param_texts
from ctr_trainer.models.registry import find_model
from ctr_trainer.ranks import dense_exchange, distributed


def make_estimator(model, data, training, embedding, run):
    """-> the Estimator that the flags describe; to train, with the number of `with_class_weight`.

    Raises:
      UserError: no --model_dir, no such model, or params that it does not take.
    """
    require(model, "model_dir")
    _quiet_tensorflow()
    shared = dict(
        train_op_fn=make_train_op(training, embedding),
        hidden_units=model.hidden_units,
        dropout=model.dropout,
        batch_norm=model.batch_norm,
        activation=model.activation,
        label=model.label,
        positive_weight=1.0 if training.positive_weight == BALANCED else training.positive_weight,
        negative_sampling=training.negative_sampling,
    )
    found = find_model(model.model)
    params = param_texts.parse(model.model, found.params_class, model.model_params, shared)
    config = RunConfig(
        tf_random_seed=training.seed,
        save_checkpoints_steps=run.save_checkpoints_steps,
        save_checkpoints_secs=run.save_checkpoints_secs,
        save_checkpoints_epochs=run.save_checkpoints_epochs,
        keep_checkpoint_max=run.keep_checkpoint_max,
        full_checkpoint_every=run.full_checkpoint_every,
        log_step_count_steps=run.log_steps,
        log_secs=run.log_secs,
        auc_window_steps=run.auc_window_steps,
        save_summary_steps=run.summary_steps,
        profile_steps=run.profile_steps,
        progress=True,
        threads=run.threads,
        mixed_precision=run.mixed_precision,
        phase_steps=run.phase_steps,
        prepared_runs=run.prepared_runs,
        prefetch_batches=data.prefetch_batches,
        embedding=EmbeddingConfig(
            service=embedding.embedding_service,
            optimizer=embedding.embedding_optimizer,
            settings=_optimizer_settings(embedding),
            learning_rate=embedding.embedding_learning_rate,
            initial_accumulator=embedding.initial_accumulator,
            init_stddev=embedding.embedding_stddev,
            l2=embedding.embedding_l2,
            clip_norm=training.clip_norm,
            overlap_lookup=embedding.overlap_lookup,
            row_copies=embedding.row_copies,
            sync_steps=embedding.sync_steps,
            strict_sync=embedding.strict_sync,
            sync_merge=embedding.sync_merge,
            sync_compression=embedding.sync_compression,
            timeout=embedding.service_timeout,
            service_shards=embedding.service_shards,
            service_restarts=embedding.service_restarts,
            security_files=embedding.security_files,
        ),
    )
    return Estimator(found.model_fn, model.model_dir, params, config, name=model.model)


def make_train_op(training, embedding):
    """-> the TrainOp that the flags describe; raises UserError where they cannot work."""
    return TrainOp(
        optimizer=DenseOptimizer(
            name=training.optimizer,
            momentum=training.momentum,
            initial_accumulator=training.dense_accumulator,
            beta1=training.adam_beta1,
            beta2=training.adam_beta2,
            epsilon=training.adam_epsilon,
            weight_decay=training.weight_decay,
            ftrl_l1=training.ftrl_l1,
            ftrl_l2=training.ftrl_l2,
        ),
        learning_rate=training.learning_rate,
        embedding_learning_rate=embedding.embedding_learning_rate,
        scale_lr=training.scale_lr,
        fp16_allreduce=training.fp16_allreduce,
        schedule=Schedule(
            name=training.lr_schedule,
            warmup_steps=training.warmup_steps,
            decay_steps=training.decay_steps,
            decay_rate=training.decay_rate,
            end=training.end_learning_rate,
            patience=training.plateau_patience,
            unit=training.lr_unit,
            boundaries=training.lr_boundaries,
            factors=training.lr_factors,
        ),
        embedding_schedule=training.embedding_lr_schedule,
        accumulation_steps=training.accumulation_steps,
        dense_sync_steps=training.dense_sync_steps,
        overlap_allreduce=training.overlap_allreduce,
        clip_norm=training.clip_norm,
        l2=training.l2,
        lr_groups=LrGroups.parse(training.lr_groups),
    )


def _quiet_tensorflow():
    """Has TensorFlow log its errors, and what its session hooks say.

    Its warnings are about TensorFlow 1 names, which are used on purpose.
    """
    tf.get_logger().setLevel("INFO")
    tf.get_logger().addFilter(_is_error_or_of_a_hook)


def _is_error_or_of_a_hook(record):
    says = record.levelno == logging.INFO and record.module == "basic_session_run_hooks"
    return says or record.levelno >= logging.ERROR


def way_of_exchange(training, run):
    """-> how the dense variables are exchanged, of `dense_exchange.WAYS`.

    Raises:
      UserError: through shared memory, with settings of Horovod's exchange.
    """
    values = {**vars(training), **vars(run)}
    given = [f"--{name}" for name in OF_HOROVOD if values[name]]
    if given and training.dense_exchange == "shared_memory":
        raise UserError(f"{', '.join(given)}: of an exchange by Horovod, not of --dense_exchange=shared_memory")
    return "horovod" if given else training.dense_exchange


def steps_exchange(embedding, exchange):
    """-> `steps_exchange` of `distributed.init`: whether steps wait for Horovod.

    Args:
      embedding: EmbeddingFlags.
      exchange: of `way_of_exchange`.
    """
    # With restarts the workers agree at each sync that the service is there.
    waits = embedding.strict_sync or embedding.service_restarts > 0
    return waits or dense_exchange.is_by_horovod(exchange)


def _optimizer_settings(embedding):
    try:
        return OptimizerSettings(
            momentum=embedding.embedding_momentum,
            beta1=embedding.embedding_beta1,
            beta2=embedding.embedding_beta2,
            epsilon=embedding.embedding_epsilon,
            l1=embedding.embedding_ftrl_l1,
            l2=embedding.embedding_ftrl_l2,
            weight_decay=embedding.embedding_weight_decay,
        )
    except ValueError as error:
        raise UserError(f"--embedding_optimizer={embedding.embedding_optimizer}: {error}") from None


def metrics_config(metrics):
    """-> `MetricsConfig` of the flags."""
    return MetricsConfig(exact_auc=metrics.exact_auc, group_by=metrics.group_by)


def make_eval_spec(evaluation, metrics, input_fn):
    """-> the `EvalSpec` that the flags describe, None where they ask for no evaluation.

    Raises:
      UserError: flags of evaluations without any, or such that exclude each other.
    """
    if not evaluation.evaluates:
        given = {"best_metric": evaluation.best_metric, "early_stopping_patience": evaluation.early_stopping_patience}
        for name, value in given.items():
            if value:
                raise UserError(
                    f"--{name}={value} needs evaluations: give --eval_steps or --eval_epochs, and --eval_data"
                )
        return None
    return EvalSpec(
        input_fn,
        steps=evaluation.eval_batches or None,
        every_n_steps=evaluation.eval_steps or None,
        every_n_epochs=evaluation.eval_epochs,
        metrics=metrics_config(metrics),
        best_metric=evaluation.best_metric or None,
        best_direction=evaluation.best_direction,
        early_stopping_patience=evaluation.early_stopping_patience,
        early_stopping_min_delta=evaluation.early_stopping_min_delta,
    )


def progress(what, batches):
    """-> the hooks of a pass over a `BatchReader`'s data set: a progress bar on rank 0."""
    return [ProgressHook(what, batches.steps_per_epoch)] if distributed.is_chief() else []


def training_reader(model, data, training, position):
    """-> this rank's batches of --train_data, of the negative examples the share that --negative_sampling keeps."""
    batches = reader(data.train_data, model, data, training, position)
    if training.negative_sampling in (None, 1):
        return batches
    return NegativeSampling(batches, training.negative_sampling, distributed.rank(), training.seed)


def reader(path, model, data, training, position=None, once=False, labels=True):
    """-> this rank's batches of a data set, converted or foreign. A collective.

    Args:
      once: every row once and in the order of the files, as for evaluation.
      labels: whether they are needed; False to predict.
    """
    return BatchReader(
        open_source(path, model.model_dir, data.feature_spec, data.data_cache, labels),
        data.batch_size,
        rank=distributed.rank(),
        size=distributed.size(),
        shuffle=data.shuffle and not once,
        seed=training.seed,
        epochs=1 if once else data.epochs or None,
        position=position,
        dim=model.embedding_dim or None,
        labels=labels,
        num_readers=data.num_readers,
    )
