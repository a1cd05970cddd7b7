"""The graph of a mode, with the input that feeds it and the store of its rows."""

import contextlib
import dataclasses

import tensorflow as tf

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator import loss_scaling
from ctr_trainer.estimator.evaluation_store import open_evaluation_store
from ctr_trainer.estimator.given_optimizer import with_train_op
from ctr_trainer.estimator.input_fn import call_input_fn, make_input
from ctr_trainer.estimator.open_store import in_fixed_order, open_store
from ctr_trainer.estimator.padding import PaddedInput, refuse_unweighed
from ctr_trainer.graph_notes import negative_share, run_length
from ctr_trainer.graph_notes.estimator_spec import ModeKeys
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed, last_words

tf1 = tf.compat.v1


@contextlib.contextmanager
def training_graph(model_fn, params, config, model_dir, services, input_fn, checkpoint, warm, seen, last):
    """Gives (`Feed`, EstimatorSpec, store) of a training whose rows are as the checkpoint has them. A collective.

    Args:
      model_fn, params, config, model_dir, services: see `Estimator`.
      input_fn: see `Estimator.train`.
      checkpoint: the `Checkpoint` that training goes on from, or None.
      warm: what it begins with if there is no checkpoint, see `warm_start.of`.
      seen: the `Observation` of the training.
      last: the step that training stops at, or None.

    Raises:
      UserError: the store holds rows, and there is no checkpoint that they are of.
    """
    with contextlib.ExitStack() as stack:
        if config.deterministic:
            tf.config.experimental.enable_op_determinism()
            config = in_fixed_order(config)
        _begin(stack, config)
        if config.mixed_precision == "float16":
            loss_scaling.ask()
        position = checkpoint.position if checkpoint else None
        data = call_input_fn(input_fn, ModeKeys.TRAIN, params, config, position)
        pads = config.uneven_inputs == "pad" and distributed.size() > 1
        has_read = seen.input_ends.has_read if distributed.size() > 1 else None
        inputs = PaddedInput(data, has_read) if pads else make_input(data, model_dir, has_read=has_read)
        epochs = inputs.in_epochs and dataclasses.asdict(inputs.in_epochs)
        batches, epochs = distributed.broadcast_object((inputs.batches, epochs), "batches")
        run_length.record(run_length.going_on(checkpoint, batches, last, epochs and run_length.Epochs(**epochs)))
        spec = model_fn(inputs.features, inputs.labels, ModeKeys.TRAIN, params)
        spec = with_train_op(spec, inputs, config.embedding.learning_rate)
        if pads:
            refuse_unweighed()
        stack.enter_context(warm.variables())
        store = LocalStore()
        if inputs.uses_embeddings:
            store = stack.enter_context(open_store(config.embedding, model_dir, bool(config.publish.to), services))
        feed = inputs.connect(store, config, spec, clock=seen.clock)
        stack.callback(feed.close)  # Its threads use the store, so they end before that closes.
        if distributed.is_chief():
            _restore_rows(store, checkpoint, model_dir)
            tables = feed.embeddings.rows.values() if feed.embeddings else ()
            warm.rows(store, [rows.config for rows in tables], model_dir)
        distributed.barrier("embedding_rows_restored")
        store.reopen()
        yield _ready(stack, feed), spec, store


@contextlib.contextmanager
def trained_graph(model_fn, params, config, model_dir, mode, input_fn, checkpoint):
    """Gives (`Feed`, EstimatorSpec) to evaluate a checkpoint or predict with it, from rows of its own. A collective.

    Args:
      model_fn, params, config, model_dir: see `Estimator`.
      mode: `ModeKeys.EVAL` or `ModeKeys.PREDICT`.
      input_fn: see `Estimator.train`.
      checkpoint: a `Checkpoint`.
    """
    with contextlib.ExitStack() as stack:
        _begin(stack, config)
        params = negative_share.as_trained(params, checkpoint)
        inputs = make_input(call_input_fn(input_fn, mode, params, config, None), model_dir)
        spec = model_fn(inputs.features, inputs.labels if mode == ModeKeys.EVAL else None, mode, params)
        rows = stack.enter_context(open_evaluation_store())
        feed = inputs.connect(rows.store, config, trained=_trained_tables(checkpoint))
        stack.callback(feed.close)  # Its threads use the store, so they end before that closes.
        rows.restore(checkpoint)
        yield _ready(stack, feed), spec


def _begin(stack, config):
    stack.enter_context(tf.Graph().as_default())
    tf1.set_random_seed(config.seed)
    tf1.train.get_or_create_global_step()


def _ready(stack, feed):
    """-> the feed, which looks rows up ahead from here on; an error claims the last word of this process."""
    feed.rewind()  # Lookups ahead read rows, so not before these are the checkpoint's.
    stack.enter_context(last_words.of_this_process().claimed_on_error())
    return feed


def _trained_tables(checkpoint):
    """-> dict of name -> TableConfig: a model is evaluated as it was trained, whatever the flags say now."""
    configs = checkpoint.table_configs() if distributed.is_chief() else {}
    configs = {name: config.to_dict() for name, config in configs.items()}
    configs = distributed.broadcast_object(configs, "trained_tables")
    # Which keys have rows was decided in training: an evaluation makes none and drops none.
    return {name: TableConfig.from_dict(values).without_limits() for name, values in configs.items()}


def _restore_rows(store, checkpoint, model_dir):
    """Brings the tables to the checkpoint, or makes sure that a fresh run starts with empty ones."""
    if checkpoint:
        store.restore(checkpoint.path, checkpoint.tables)
        return
    rows = {name: table["rows"] for name, table in store.stats()["tables"].items() if table["rows"]}
    if rows:
        raise UserError(
            f"the embedding service holds rows ({rows}) and {model_dir} has no checkpoint, so this would be a fresh "
            "model on another's rows: restart the service empty, or name the --model_dir that they belong to"
        )
