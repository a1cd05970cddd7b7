"""Opens a training: builds its graph and restores its rows. `Estimator.train` and `own_loop` run it."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.python.framework import config as determinism

from ctr_trainer.checkpoint import model_directory, retention
from ctr_trainer.checkpoint.warm_start import WarmStart, pretrained_rows, warm_start_of
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.estimator.batch_feed import connect
from ctr_trainer.estimator.built_model import BuiltModel, TrainingJob, build_model
from ctr_trainer.estimator.built_step import BuiltStep
from ctr_trainer.estimator.feed import Feed
from ctr_trainer.estimator.hooks.ending_hooks import EqualVariables
from ctr_trainer.estimator.observation import InputEnds, observed_phases
from ctr_trainer.estimator.open_store import open_store
from ctr_trainer.estimator.run_length import EverySeconds, EverySteps
from ctr_trainer.estimator.saving import Saving
from ctr_trainer.models.params import params_of_training
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.dense_exchange import average_of_ranks
from ctr_trainer.ranks.endings import report
from ctr_trainer.ranks.meetings import Meetings
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.files.paths import Advanced
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import ServiceLost, UserError, followed

_log = logging.getLogger(__name__)
# Two steps of a quiet stream, which take seconds each, may pass until all ranks know of a signal.
_STEPS_OF_STREAMS = 2


class DenseStep:
    """The runs of the current graph that train the dense variables.

    Attributes:
      micro_batches: number of runs of a step.
      accumulate: the operation of all runs of a step but the last; None if a step has one run.
      train_op: the operation of the last run.
    """

    def __init__(self, step: BuiltStep) -> None:
        self._step, self.accumulate, self.train_op = step, step.accumulate, step.train_op
        self.micro_batches = step.run_length.accumulation_steps
        self._settled, self._ended = True, False
        self._equal = EqualVariables()
        self._average: tf.Operation | None = None
        if not step.steps_wait and distributed.size() > 1:
            # The optimizer state is averaged too. With different states, the workers would scale their steps
            # differently. Besides, a checkpoint has only one state.
            variables = [variable for variable in tf1.global_variables() if variable.dtype.is_floating]
            in_memory = step.exchange is not None and step.exchange.is_in_memory
            self._average = average_of_ranks(variables, in_memory)

    def end_step(self, session: tf1.Session, step: int, clock: Clock) -> None:
        """Averages the dense variables after a step of local SGD if it is due. Checks a program's first `train_op`."""
        self._settled = False
        if not self._step.steps_wait and step % self._step.dense_sync_steps == 0:
            with clock.within("dense_sync"):
                self.settle(session)
        if self._step.exchange is None and not self._ended:
            self._equal.check(session, step, is_first=True)
        self._ended = True

    def settle(self, session: tf1.Session) -> None:
        """Averages the dense variables of local SGD. A collective.

        Does nothing if no step has ended since the last call: the mean of equal values may differ from them in a bit.
        """
        if self._average is not None and not self._settled:
            with distributed.watchdog().waiting("the other ranks' dense variables"):
                session.run(self._average)
        self._settled = True

    def settle_equal(self, session: tf1.Session, step: int) -> None:
        """Calls `settle`, and raises UserError if the trainable variables are not equal on all ranks. A collective."""
        self.settle(session)
        self._equal.check(session, step)


@dataclasses.dataclass(frozen=True)
class Training:
    """A training whose graph is built and whose rows are restored.

    Attributes:
      clock: `Clock` of the training thread.
      saver: saves the dense variables.
      save: writes a checkpoint of the rows and the dense variables.
      saves: determines when to save.
      meetings: the steps after which the ranks exchange requests.
    """

    job: TrainingJob
    model: BuiltModel
    feed: Feed
    store: Store
    clock: Clock
    input_ends: InputEnds
    warm_start: WarmStart
    saver: tf1.train.Saver
    dense: DenseStep
    save: Saving
    saves: EverySteps
    meetings: Meetings

    @contextlib.contextmanager
    def closing(self, things: Iterable[Any], has_trained: Callable[[], bool]) -> Iterator[None]:
        """Closes `save` and those of `things` that can be closed at the end of the block, the last one first.

        TensorFlow calls a hook's `end` only after a training without a failure. An error after the first step (see
        `has_trained`) names the last checkpoint.
        """
        try:
            with contextlib.ExitStack() as stack:
                for thing in (self.save, *things):
                    if hasattr(thing, "close"):
                        stack.callback(thing.close)
                yield
        except ServiceLost:
            raise  # `Estimator.train` adds the checkpoint.
        except UserError as error:
            if not has_trained():
                raise
            raise UserError(followed(str(error), model_directory.resume_text(self.job.model_dir))) from None


@contextlib.contextmanager
def open_training(job: TrainingJob) -> Iterator[Training]:
    """Builds the graph of a job, restores the rows and yields the `Training`. A collective.

    Within the block, the graph is the default graph.

    Raises UserError: the checkpoint belongs to another model, or the store has rows although there is no checkpoint.
    """
    if job.checkpoint:
        job.record.check(job.checkpoint, job.model_dir, training=True)
    if distributed.is_chief():
        if job.checkpoint:
            size = distributed.size()
            _log.info("%s", model_directory.resuming_text(job.checkpoint, job.model_dir, size, job.position))
        retention.set_aside(job.model_dir, job.start, job.newer_checkpoints)
        retention.remove_unfinished(job.model_dir)
        model_directory.point_tensorflow_to(job.model_dir, job.checkpoint)
    warm = WarmStart()

    def find_start(advanced: Advanced) -> None:
        nonlocal warm
        warm = warm_start_of(job.warm_start, job.checkpoint, advanced)

    distributed.from_chief(find_start, "warm_start")
    clock = Clock()
    input_ends = InputEnds(clock)
    with observed_phases(clock, job.staging.path, input_ends), contextlib.ExitStack() as stack:
        config = job.config
        stack.enter_context(default_graph(tf.Graph(), config))
        model = build_model(job, input_ends)
        stack.enter_context(warm.variables(getattr(params_of_training(job.params), "negative_sampling", None)))
        store: Store = LocalStore()
        if model.inputs.placeholders:
            store = stack.enter_context(open_store(job, model.step.steps_wait))
        feed = connect(model.inputs, store, config, model.step, clock=clock)
        stack.callback(feed.close)  # Its threads use the store, so they end before the store is closed.

        def restore(advanced: Advanced) -> None:
            if job.checkpoint:
                store.restore(job.checkpoint.path, job.checkpoint.tables, advanced)
            elif there := {n: each["rows"] for n, each in store.stats()["tables"].items() if each["rows"]}:
                if not store.has_own_rows:
                    raise UserError(
                        f"the embedding service holds rows ({there}) and {job.model_dir} has no checkpoint, so this "
                        "would train a new model on the rows of another one: restart the service empty, or name the "
                        "model_dir of these rows"
                    )
                store.restore(job.model_dir, [])  # An earlier attempt was lost before its first checkpoint.
            tables = feed.embeddings.rows.values() if feed.embeddings else ()
            configs = [rows.config for rows in tables]
            if model.inputs.fed and not job.checkpoint:
                pretrained_rows(store, model.inputs.features.spec, configs, job.model_dir, warm.source, advanced)
            warm.rows(store, configs, job.model_dir, advanced)

        distributed.from_chief(restore, "embedding_rows_restored")
        store.reopen()
        begin_feed(stack, feed)
        if model.inputs.fed and distributed.is_chief() and model.inputs.batches != 0:
            model_directory.save_features(job.model_dir, model.inputs.features)
        saver, dense = tf1.train.Saver(max_to_keep=None), DenseStep(model.step)
        meetings = Meetings(
            distributed.rank(),
            distributed.size(),
            functools.partial(distributed.all_sum, name="what_ranks_ask_for"),
            _STEPS_OF_STREAMS if feed.is_live else None,
            waiting=lambda: clock.within("dense_sync"),
        )
        meetings.meet(0, signal=0, is_over=False)  # Creates the graph and session of this collective before the steps.
        yield Training(
            job=job,
            model=model,
            feed=feed,
            store=store,
            clock=clock,
            input_ends=input_ends,
            warm_start=warm,
            saver=saver,
            dense=dense,
            save=Saving(job, saver, feed, store, model.step.run_length, dense.settle_equal),
            saves=EverySeconds(secs) if (secs := config.save_checkpoints_secs) else EverySteps(config.checkpoint_steps),
            meetings=meetings,
        )


@contextlib.contextmanager
def default_graph(graph: tf.Graph, config: RunConfig) -> Iterator[None]:
    """Makes a graph, with the seed and the global step, the default graph in the block.

    With `deterministic`, the process's operations are deterministic there.
    """
    with contextlib.ExitStack() as stack:
        if config.deterministic and not determinism.is_op_determinism_enabled():
            tf.config.experimental.enable_op_determinism()
            # Without it, a notebook's other random operations would need a seed. TensorFlow has no public name for it.
            stack.callback(determinism.disable_op_determinism)
        stack.enter_context(graph.as_default())
        tf1.set_random_seed(config.seed)
        tf1.train.get_or_create_global_step()
        yield


def begin_feed(stack: contextlib.ExitStack, feed: Feed) -> None:
    """Starts reading and looking up ahead. Until the stack is closed, an error is recorded at once.

    Lookups ahead read rows, so the store must already have the rows of the checkpoint.
    """
    feed.rewind()
    stack.enter_context(report.running().recording_errors())
