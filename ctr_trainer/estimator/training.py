"""A training from its graph to its last step."""

import contextlib
import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator.given_optimizer import with_train_op
from ctr_trainer.estimator.open_store import in_fixed_order, open_evaluation_store, open_store
from ctr_trainer.estimator.padding import PaddedInput, refuse_unweighed
from ctr_trainer.estimator.program import call_input_fn, make_input
from ctr_trainer.graph_notes import run_length
from ctr_trainer.graph_notes.estimator_spec import ModeKeys
from ctr_trainer.graph_notes.notes import StepPlan, notes, params_as_trained
from ctr_trainer.hooks.stop_hook import StopHook
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed, last_words
from ctr_trainer.ranks.dense_exchange import average_of_ranks
from ctr_trainer.ranks.notices import Notices
from ctr_trainer.ranks.stopping import Stopping

tf1 = tf.compat.v1
_TRAININGS = itertools.count()  # Of this process, the same on all ranks.


@contextlib.contextmanager
def all_closed(things):
    """Closes, at the end of the block, each of the things that has a `close`; the last one first.

    TensorFlow calls a hook's `end` only after a training without a failure; this closes hooks after any end.

    Args:
      things: sequence of hooks and other objects.
    """
    with contextlib.ExitStack() as stack:
        for thing in things:
            if hasattr(thing, "close"):
                stack.callback(thing.close)
        yield


class OptimizerStep:
    """Runs optimizer steps of the current graph, one per call.

    Args:
      train_op: the operation that ends a step, of the `EstimatorSpec`.
      plan: the `StepPlan` of the graph.
    """

    def __init__(self, train_op: tf.Operation, plan: StepPlan) -> None:
        self._train_op, self._plan = train_op, plan
        self._kept = False
        self._average = None
        if plan.dense_sync_steps > 1 and distributed.size() > 1:
            # The state of the optimizer is averaged too. It tells how large the gradients were: with a state of its
            # own, each worker would step by its own measure, and a checkpoint holds one state only.
            variables = [variable for variable in tf1.global_variables() if variable.dtype.is_floating]
            self._average = average_of_ranks(variables, "dense_variables")

    def __call__(self, session: tf1.train.MonitoredSession) -> None:
        """Calls `session.run` once for each batch that the step needs."""
        for _ in range(self._plan.accumulation_steps - 1):
            session.run(self._plan.accumulate)
        begins = self._plan.begin is not None and not self._kept
        # Not after the run, whose hooks may settle.
        self._kept = self._plan.begin is not None
        session.run(self._plan.begin if begins else self._train_op)

    def settle(self, session: tf1.Session | tf1.train.MonitoredSession) -> None:
        """Applies what is pending to the dense variables, so that they are equal on all ranks. A collective.

        Under local SGD the variables, the optimizer's state and the moving statistics become their mean over the
        workers.
        """
        with distributed.watchdog().waiting("the other ranks' dense variables"):
            if self._average is not None:
                session.run(self._average)
            if self._kept:
                session.run(self._plan.drain)
        self._kept = False


def stop_hook(grace_secs):
    """-> the `StopHook` of a training. A collective.

    Args:
      grace_secs: see `StopHook`.
    """
    rank, size = distributed.rank(), distributed.size()

    def all_sum(told):
        return distributed.all_sum(told, "stopping", watched=False)

    all_sum(np.zeros((2, size), np.int64))  # Makes its graph and its session now, and not beside steps.
    notices = Notices.of_this_job()
    if size > 1 and not notices.address:
        grace_secs = 0.0  # Without horovodrun a rank could not tell the others.
    words, name = last_words.of_this_process(), next(_TRAININGS)
    stopping = Stopping(rank, size, name, notices, all_sum, distributed.watchdog(), words.is_one_lost)
    return StopHook(stopping, words.signals, grace_secs)


def stopped_text(stop, step, path):
    """-> the last line of a training that has stopped.

    Args:
      stop: its `StopHook`.
      step: its last one.
      path: of the checkpoint of that step.
    """
    whom = "" if len(stop.asked) == distributed.size() else f" to rank {', '.join(map(str, stop.asked))}"
    return (
        f"stopped by {last_words.name_of(stop.signal)}{whom} after step {step}; the checkpoint {path} is saved: the "
        "same command goes on from there"
    )


@contextlib.contextmanager
def training_graph(model_fn, params, config, model_dir, services, input_fn, checkpoint, warm, seen, last):
    """Gives (`Feed`, EstimatorSpec, store) of a training whose rows are as the checkpoint has them. A collective.

    Args:
      model_fn, params, config, model_dir, services: see `Estimator`.
      input_fn: see `Estimator.train`.
      checkpoint: the `Checkpoint` that training goes on from, or None.
      warm: what it begins with if there is no checkpoint, see `warm_start.warm_start_of`.
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
            notes().scales_loss = True
        position = checkpoint.position if checkpoint else None
        data = call_input_fn(input_fn, ModeKeys.TRAIN, params, config, position)
        pads = config.uneven_inputs == "pad" and distributed.size() > 1
        has_read = seen.input_ends.has_read if distributed.size() > 1 else None
        inputs = PaddedInput(data, has_read) if pads else make_input(data, model_dir, has_read=has_read)
        epochs = inputs.in_epochs and dataclasses.asdict(inputs.in_epochs)
        batches, epochs = distributed.broadcast_object((inputs.batches, epochs), "batches")
        notes().run_length = run_length.going_on(checkpoint, batches, last, epochs and run_length.Epochs(**epochs))
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
        params = params_as_trained(params, checkpoint)
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
