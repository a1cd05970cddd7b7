"""Input from a batch reader: placeholders, and the batches and embedding rows that are fed to them."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.data.batch import Batch
from ctr_trainer.data.read_ahead import OrderedMap, read_ahead
from ctr_trainer.data.row_order import progress
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.worker_rows import RowStep
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator.embeddings import Embeddings, Lookups, open_embeddings
from ctr_trainer.estimator.feed import Feed, GraphInput
from ctr_trainer.estimator.hooks.step_hook import Order
from ctr_trainer.estimator.inputs import GivenReader, WholeSteps
from ctr_trainer.estimator.open_rows import RowPlan
from ctr_trainer.features.columns import FORM, Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.graph_notes.estimator_spec import EstimatorSpec
from ctr_trainer.graph_notes.notes import RowTraining, notes
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError


class BatchInput(GraphInput):
    """Placeholders for the features of a reader's batches.

    Args:
      spec, statistics: the feature spec and the statistics of the training data; for a new model, the reader's own.
      has_read: callback f(), called after each batch is read, or None.
    """

    fed = True
    features: FedFeatures

    def __init__(
        self,
        reader: GivenReader,
        spec: FeatureSpec,
        statistics: Statistics | None,
        has_read: Callable[[], None] | None = None,
    ) -> None:
        features = FedFeatures(spec, statistics, reader.batch_size)
        super().__init__(features, features.labels)
        self._reader, self._has_read = reader, has_read
        self.batch_size, self.batches, self.epochs = reader.batch_size, reader.steps, reader.epochs
        self.batches_per_epoch, self.in_epochs = reader.steps_per_epoch, reader.in_epochs

    @property
    def uses_embeddings(self) -> bool:
        return bool(self.features.segments)

    @functools.cached_property
    def weight(self) -> tf.Tensor:
        return tf.reduce_sum(self.features["weight"])

    def weights(self, labels: tf.Tensor) -> tf.Tensor:
        return self.features["weight"]

    def connect(
        self,
        store: Store,
        config: RunConfig,
        spec: EstimatorSpec | None = None,
        trained: Mapping[str, TableConfig] | None = None,
        within_training: bool = False,
        clock: Clock | None = None,
    ) -> "BatchFeed":
        training = None
        if spec is not None:
            rate = config.embedding.learning_rate
            training = notes().row_training or _row_training(self.features, spec.loss, rate)
        in_order = config.deterministic and training is not None
        if in_order and self.features.spec.limits and (distributed.size() > 1 or config.embedding.service != "auto"):
            raise UserError(
                "deterministic: with [[limits]] in the feature spec, which keys have rows depends on the time of the "
                "workers' requests: leave out one of the two, or train with one worker and no service"
            )
        ahead = 0 if training is None or in_order else config.prefetch_batches
        if self._reader.is_live:
            ahead = min(ahead, 1)  # So that the records of a stream do not wait for later batches.
        plan = None
        if training is not None:
            plan = RowPlan(notes().run_length.start, training.learning_rate_scale, in_order)
        embeddings = open_embeddings(
            self.features,
            config.embedding,
            store,
            plan,
            seed=config.seed,
            ahead=ahead,
            trained=trained,
            uncached=within_training,
        )
        hook = InputHook(self.features, embeddings, training, clock, self._has_read)
        return BatchFeed(self, self._reader, embeddings, hook, config.prefetch_batches)


class InputHook(tf1.train.SessionRunHook):
    """Before a step, feeds a batch and the embedding rows of its keys; after the step, applies the rows' gradients.

    If an optimizer step takes several micro-batches, their gradients are summed and applied after the last micro-batch.
    The session's loop ends when the batches end. There are no batches before the first `restart`.

    Args:
      features: builds the feed of all inputs other than embedding rows.
      has_read: callback f(), called after each batch is read, or None.

    Attributes:
      training: how the rows are trained; None if no gradients are applied.
      batch: the batch of the current step.
      examples: number of examples fed since `restart`.
    """

    phase, order = "feed", Order.INPUT

    def __init__(
        self,
        features: FedFeatures,
        embeddings: Embeddings,
        training: RowTraining | None = None,
        clock: Clock | None = None,
        has_read: Callable[[], None] | None = None,
    ) -> None:
        self._features, self._embeddings, self.training = features, embeddings, training
        self._batches: Iterator[tuple[Batch, Lookups]] = iter(())
        self._has_read = has_read or (lambda: None)
        self._clock = clock or Clock()
        self._rows_of: tuple[str, ...] = ()
        self._fetches: list[tf.Tensor] = []
        self._last_fetches: list[tf.Tensor] = []
        self._micro_batches, self._micro_batch = 1, 0
        self._awaits_rate = training is not None and embeddings.moves_all_rows
        self.batch: Any = None
        self.examples = 0

    def restart(self, batches: Iterable[tuple[Batch, Lookups]]) -> None:
        """Feeds the batches, which come from `Embeddings.prepare`, from the next step on."""
        self._batches, self._micro_batch, self.examples = iter(batches), 0, 0

    def begin(self) -> None:
        training = self.training
        if training is not None and training.gradients:
            self._micro_batches = notes().step_plan.accumulation_steps
            # Flat lists, made once, because the session flattens nested fetches at each run.
            self._rows_of, self._fetches = tuple(training.gradients), list(training.gradients.values())
            self._last_fetches = [*self._fetches, training.learning_rate]
            if training.share is not None:
                self._last_fetches.append(training.share)

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        if self._awaits_rate and self.training is not None:
            # Not in `after_create_session`, in which a hook of a later order may still lower the learning rate.
            self._awaits_rate = False
            self._embeddings.expect_learning_rate(float(run_context.session.run(self.training.learning_rate)))
        with self._clock.within(self.phase):
            return self._feed()

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self._fetches:
            with self._clock.within("update"):
                self._apply(run_values.results)

    def _feed(self) -> tf1.train.SessionRunArgs:
        with self._clock.within("read"):
            self.batch, lookups = next(self._batches)
        self._has_read()
        with self._clock.within("lookup"):
            self._looked_up = self._embeddings.look_up(lookups, create=self.training is not None)
        feed = self._looked_up.feed | self._features.feed(self.batch)
        self.examples += self.batch.size
        self._micro_batch = self._micro_batch % self._micro_batches + 1
        # The rate and the share belong to the whole step. Fetching them with an earlier micro-batch would exchange the
        # gradients of an incomplete step.
        is_last = self._micro_batch == self._micro_batches
        return tf1.train.SessionRunArgs(self._last_fetches if is_last else self._fetches, feed)

    def _apply(self, results: list[np.ndarray]) -> None:
        weight = 1.0 if self.training is None or self.training.share is None else float(np.sum(self.batch.weights))
        batch = self._looked_up, dict(zip(self._rows_of, results, strict=False)), weight
        if self._micro_batch < self._micro_batches:
            self._embeddings.add_gradients(*batch)
        else:
            step = RowStep(*map(float, results[len(self._rows_of) :]))
            self._embeddings.apply_gradients(*batch, step)


class BatchFeed(Feed):
    """Feeds a reader's batches and their embedding rows. Feeds nothing before `rewind` is called.

    Args:
      prefetch_batches: number of batches to read and look up ahead.
    """

    embeddings: Embeddings

    def __init__(
        self,
        inputs: BatchInput,
        reader: GivenReader,
        embeddings: Embeddings,
        hook: InputHook,
        prefetch_batches: int,
    ) -> None:
        super().__init__(inputs, [hook])
        self._reader, self.embeddings, self._hook, self._prefetch_batches = reader, embeddings, hook, prefetch_batches
        per_step = notes().step_plan.accumulation_steps if hook.training else 1
        self._batches = WholeSteps(reader, per_step)
        self._ahead: OrderedMap[Any, tuple[Batch, Lookups]] = read_ahead((), 0)
        self.steps = None if reader.steps is None else -(-reader.steps // per_step)
        self.is_live, self.stream_state = reader.is_live, reader.stream_state
        self.status_lines = reader.status_lines(embeddings.new_keys)
        self.latencies = [reader.read_latency, *embeddings.latencies]
        self.new_keys = embeddings.new_keys
        here, trained = reader.statistics or {}, inputs.features.statistics or {}
        self.new_keys.forms = lambda name: (here.get(name, {}).get(FORM, ""), trained.get(name, {}).get(FORM, ""))

    @property
    def batch(self) -> Batch:
        return self._hook.batch

    @property
    def examples(self) -> int:
        return self._hook.examples

    def rewind(self) -> None:
        self._end_reading()
        done, per_epoch = self.epochs_after(0), self._reader.steps_per_epoch
        self.new_keys.limit = float("inf") if done is None or per_epoch is None else (1 - done) * per_epoch
        self.embeddings.begin()
        self._ahead = read_ahead(self.embeddings.prepare(self._batches), self._prefetch_batches)
        self._hook.restart(self._ahead)

    def flush(self) -> None:
        self.embeddings.flush()

    def position_after(self, steps: int) -> dict[str, Any] | None:
        return self._reader.position_after(self._batches.taken_by(steps))

    def committed(self, position: dict[str, Any] | None) -> None:
        if position is not None:
            self._reader.committed(position)

    def epochs_after(self, steps: int) -> float | None:
        known = progress(self.position_after(steps))
        return known[0] if known else None

    def with_columns(self, predictions: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns a dict of the id columns, the labels, if any, and the predictions for the examples of the batch.

        The label is named `label`; it is float32, and NaN for an example without a label. If there are several labels,
        they are named `label/NAME`. If an id column or a prediction has the same name, `_` is appended to the label's.
        """
        batch, spec = self.batch, self._reader.spec
        columns = {**batch.ids}
        if spec.labelled:
            several = [f"label/{label.name}" for label in spec.labels] if spec.other_labels else ["label"]
            for name, labels in zip(several, batch.labels.reshape(len(batch.labels), -1).T, strict=True):
                while name in columns or name in predictions:
                    name += "_"
                columns[name] = labels
        return {name: value[: batch.size] for name, value in {**columns, **predictions}.items()}

    def close(self) -> None:
        self._end_reading()
        self.embeddings.close()

    def _end_reading(self) -> None:
        self._ahead.close()


def _row_training(features: FedFeatures, loss: tf.Tensor, learning_rate: float) -> RowTraining:
    """Returns the `RowTraining` from the gradients of a loss, for a `train_op` that this package did not make."""
    rows = features.placeholders
    gradients = tf.gradients(loss, rows) if rows else []
    by_name = {row.name: g for row, g in zip(rows, gradients, strict=True) if g is not None}
    return RowTraining(by_name, tf.convert_to_tensor(learning_rate))
