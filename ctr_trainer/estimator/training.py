"""Prepares a training: builds its graph and restores its rows. `Estimator.train` and `own_loop` run it."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.estimator import model_directory, retention
from ctr_trainer.estimator.feed import Feed, GraphInput
from ctr_trainer.estimator.hooks.measuring_hooks import StepClockHook
from ctr_trainer.estimator.inputs import PaddedInput, refuse_unweighed
from ctr_trainer.estimator.model_record import TrainingJob
from ctr_trainer.estimator.observation import InputEnds, observed_phases
from ctr_trainer.estimator.open_store import open_store
from ctr_trainer.estimator.program import call_input_fn, make_input, with_train_op
from ctr_trainer.estimator.saving import Saving
from ctr_trainer.estimator.warm_start import NoWarmStart, warm_start_of
from ctr_trainer.graph_notes import run_length
from ctr_trainer.graph_notes.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.graph_notes.notes import StepPlan, micro_batch, notes
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.endings import report
from ctr_trainer.ranks.mean_optimizer import average_of_ranks
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)


class OptimizerStep:
    """Runs optimizer steps of the current graph, one per call; `train_op` ends a step."""

    def __init__(self, train_op: tf.Operation, plan: StepPlan) -> None:
        self._train_op, self._plan, self._micro_batch = train_op, plan, micro_batch()
        self._kept = False
        self._average: tf.Operation | None = None
        if plan.dense_sync_steps > 1 and distributed.size() > 1:
            # The optimizer state is averaged too. With different states, the workers would scale their steps
            # differently. Besides, a checkpoint has only one state.
            variables = [variable for variable in tf1.global_variables() if variable.dtype.is_floating]
            self._average = average_of_ranks(variables, "dense_variables")

    def __call__(self, session: tf1.train.MonitoredSession) -> None:
        """Calls `session.run` once for each batch of the step."""
        for number in range(1, self._plan.accumulation_steps):
            session.run(self._plan.accumulate, {self._micro_batch: number})
        begins = self._plan.begin is not None and not self._kept
        # Set before the run, because the hooks of the run may settle.
        self._kept = self._plan.begin is not None
        session.run(self._plan.begin if begins else self._train_op)

    def settle(self, session: tf1.Session | tf1.train.MonitoredSession) -> None:
        """Applies pending updates to the dense variables, so that they are equal on all ranks. A collective.

        With local SGD, the variables, the optimizer state and the moving statistics become their mean over the workers.
        """
        with distributed.watchdog().waiting("the other ranks' dense variables"):
            if self._average is not None:
                session.run(self._average)
            if self._kept:
                session.run(self._plan.drain)
        self._kept = False


@dataclasses.dataclass(frozen=True)
class Training:
    """A training whose graph is built and whose rows are restored.

    Attributes:
      clock: `Clock` of the training thread.
      steps: counts and measures the steps.
      warm_start: provides the initial values if there is no checkpoint.
      saver: saves the dense variables.
      step: runs a step.
      save: writes a checkpoint of the rows and the dense variables.
    """

    job: TrainingJob
    feed: Feed
    spec: EstimatorSpec
    store: Store
    clock: Clock
    steps: StepClockHook
    input_ends: InputEnds
    warm_start: NoWarmStart
    saver: tf1.train.Saver
    step: OptimizerStep
    save: Saving

    @contextlib.contextmanager
    def closing(self, things: Iterable[Any]) -> Iterator[None]:
        """Closes `save` and `things` at the end of the block, the last one first. An error names the last checkpoint.

        TensorFlow calls a hook's `end` only after a training without a failure. This method closes hooks in any case.
        Objects without a method `close` are ignored.
        """
        with (
            self.save.naming_the_last_checkpoint(lambda: self.steps.step > self.job.start),
            contextlib.ExitStack() as stack,
        ):
            for thing in (self.save, *things):
                if hasattr(thing, "close"):
                    stack.callback(thing.close)
            yield


@contextlib.contextmanager
def open_training(job: TrainingJob) -> Iterator[Training]:
    """Builds the graph of a job, restores the rows and yields the `Training`. A collective.

    Within the block, the graph is the default graph.

    Raises:
      UserError: the checkpoint belongs to another model, or the store has rows although there is no checkpoint.
    """
    if job.checkpoint:
        job.record.check(job.checkpoint, job.model_dir, training=True)
    if distributed.is_chief():
        if job.checkpoint:
            _log.info("%s", model_directory.resuming_text(job.checkpoint, job.model_dir, distributed.size()))
        retention.set_aside(job.model_dir, job.start, job.newer_checkpoints)
        retention.remove_unfinished(job.model_dir)
        model_directory.point_tensorflow_to(job.model_dir, job.checkpoint)
    warm = warm_start_of(job.warm_start, job.checkpoint)
    clock = Clock()
    input_ends = InputEnds(clock)
    with observed_phases(clock, job.staging.path, input_ends), contextlib.ExitStack() as stack:
        config = job.config
        if config.deterministic:
            tf.config.experimental.enable_op_determinism()
        begin_graph(stack, config)
        inputs, spec = _build(job, config, input_ends)
        stack.enter_context(warm.variables())
        store: Store = LocalStore()
        if inputs.uses_embeddings:
            is_published = bool(config.publish.to)
            store = stack.enter_context(open_store(config.embedding, job.model_dir, is_published, job.services))
        feed = inputs.connect(store, config, spec, clock=clock)
        stack.callback(feed.close)  # Its threads use the store, so they end before the store is closed.
        if distributed.is_chief():
            _restore_rows(store, job)
            tables = feed.embeddings.rows.values() if feed.embeddings else ()
            warm.rows(store, [rows.config for rows in tables], job.model_dir)
        distributed.barrier("embedding_rows_restored")
        store.reopen()
        begin_feed(stack, feed)
        if inputs.fed and distributed.is_chief() and feed.steps != 0:
            model_directory.save_features(job.model_dir, inputs.features)
        saver, step = tf1.train.Saver(max_to_keep=None), OptimizerStep(spec.train_op, notes().step_plan)
        save = Saving(job, saver, feed, store, step.settle)
        yield Training(
            job=job,
            feed=feed,
            spec=spec,
            store=store,
            clock=clock,
            steps=StepClockHook(clock),
            input_ends=input_ends,
            warm_start=warm,
            saver=saver,
            step=step,
            save=save,
        )


def begin_graph(stack: contextlib.ExitStack, config: RunConfig) -> None:
    """Makes a new graph, with the seed and the global step, the default graph until the stack is closed."""
    stack.enter_context(tf.Graph().as_default())
    tf1.set_random_seed(config.seed)
    tf1.train.get_or_create_global_step()


def begin_feed(stack: contextlib.ExitStack, feed: Feed) -> None:
    """Starts reading and looking up ahead. Until the stack is closed, an error is recorded at once.

    Lookups ahead read rows, so the store must already have the rows of the checkpoint.
    """
    feed.rewind()
    stack.enter_context(report.running().recording_errors())


def _build(job: TrainingJob, config: RunConfig, input_ends: InputEnds) -> tuple[GraphInput, EstimatorSpec]:
    """Calls `input_fn` and `model_fn` in the current graph. Returns the input, and the spec with its `train_op`."""
    if config.mixed_precision == "float16":
        notes().scales_loss = True
    position = job.checkpoint.position if job.checkpoint else None
    data = call_input_fn(job.input_fn, ModeKeys.TRAIN, job.params, config, position)
    pads = config.uneven_inputs == "pad" and distributed.size() > 1
    has_read = input_ends.has_read if distributed.size() > 1 else None
    inputs = PaddedInput(data, has_read) if pads else make_input(data, job.model_dir, has_read=has_read)
    own = inputs.in_epochs and dataclasses.asdict(inputs.in_epochs)
    batches, epochs = distributed.broadcast_object((inputs.batches, own), "batches")
    epochs = epochs and run_length.Epochs(**epochs)
    notes().run_length = run_length.resumed(job.checkpoint, batches, job.last_step, epochs)
    spec = job.model_fn(inputs.features, inputs.labels, ModeKeys.TRAIN, job.params)
    spec = with_train_op(spec, inputs, config.embedding.learning_rate)
    if pads:
        refuse_unweighed()
    return inputs, spec


def _restore_rows(store: Store, job: TrainingJob) -> None:
    """Restores the tables from the checkpoint, or checks that a new training starts with empty tables."""
    if job.checkpoint:
        store.restore(job.checkpoint.path, job.checkpoint.tables)
        return
    rows = {name: table["rows"] for name, table in store.stats()["tables"].items() if table["rows"]}
    if rows:
        raise UserError(
            f"the embedding service holds rows ({rows}) and {job.model_dir} has no checkpoint, so this would train "
            "a new model on the rows of another one: restart the service empty, or name the model_dir of these rows"
        )
