"""From an experiment's flags to its Estimator and its data."""

import tensorflow as tf

from ctr_trainer import distributed
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import EmbeddingConfig, Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.flags import require
from ctr_trainer.hooks.progress_hook import ProgressHook
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.registry import find_model


def make_estimator(model, data, training, embedding, run):
    """-> the Estimator that the flags describe.

    Raises:
      UserError: no --model_dir, or no such model.
    """
    require(model, "model_dir")
    tf.get_logger().setLevel("ERROR")  # its warnings are about TensorFlow 1 names, which are used on purpose
    train_op = TrainOp(
        optimizer=training.optimizer,
        learning_rate=training.learning_rate,
        embedding_learning_rate=embedding.embedding_learning_rate,
        scale_lr=training.scale_lr,
        fp16_allreduce=training.fp16_allreduce,
    )
    params = ModelParams(train_op_fn=train_op, hidden_units=model.hidden_units, dropout=model.dropout)
    config = RunConfig(
        tf_random_seed=training.seed,
        save_checkpoints_steps=run.save_checkpoints_steps,
        keep_checkpoint_max=run.keep_checkpoint_max,
        full_checkpoint_every=run.full_checkpoint_every,
        log_step_count_steps=run.log_steps,
        log_secs=run.log_secs,
        auc_window_steps=run.auc_window_steps,
        save_summary_steps=run.summary_steps,
        threads=run.threads,
        prefetch_batches=data.prefetch_batches,
        embedding=EmbeddingConfig(
            service=embedding.embedding_service,
            optimizer=embedding.embedding_optimizer,
            learning_rate=embedding.embedding_learning_rate,
            initial_accumulator=embedding.initial_accumulator,
            init_stddev=embedding.embedding_stddev,
            sync_steps=embedding.sync_steps,
            strict_sync=embedding.strict_sync,
            sync_compression=embedding.sync_compression,
            timeout=embedding.service_timeout,
            service_shards=embedding.service_shards,
            service_restarts=embedding.service_restarts,
            security_files=embedding.security_files,
        ),
    )
    return Estimator(find_model(model.model), model.model_dir, params, config)


def progress(what, batches):
    """-> the hooks of a pass over a `BatchReader`'s data set: a progress bar on rank 0."""
    return [ProgressHook(what, batches.steps_per_epoch)] if distributed.is_chief() else []


def reader(path, model, data, training, position=None, once=False):
    """-> this rank's batches of a data set.

    Args:
      once: every row once and in the order of the files, as for evaluation.
    """
    return BatchReader(
        path,
        data.batch_size,
        rank=distributed.rank(),
        size=distributed.size(),
        shuffle=data.shuffle and not once,
        seed=training.seed,
        epochs=1 if once else data.epochs or None,
        position=position,
        dim=model.embedding_dim or None,
    )
