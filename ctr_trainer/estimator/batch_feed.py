"""The input of a reader of batches: placeholders, and the batches and rows that are fed to them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ctr_trainer.data.batch import Batch
from ctr_trainer.data.read_ahead import OrderedMap, read_ahead
from ctr_trainer.data.row_order import progress
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator.embeddings import Embeddings, Lookups
from ctr_trainer.estimator.feed import Feed, GraphInput
from ctr_trainer.estimator.hooks.input_hook import InputHook
from ctr_trainer.estimator.inputs import GivenReader, WholeSteps
from ctr_trainer.features.columns import Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.graph_notes.estimator_spec import EstimatorSpec
from ctr_trainer.graph_notes.notes import RowTraining, notes
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.messages.errors import UserError


class BatchInput(GraphInput):
    """Placeholders for the features of a reader's batches.

    Args:
      reader: reads the batches.
      spec, statistics: describe the data on which the model was trained; for a new model, the reader's.
      has_read: f(), called after each batch; None for nothing.
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
        if training and config.embedding.overlap_lookup and self.features.spec.limits:
            raise UserError(
                "overlap_lookup: with [[limits]] in the feature spec, a row could be evicted before a step trains it: "
                "leave out one of the two"
            )
        in_order = config.deterministic and training is not None
        if in_order and self.features.spec.limits and (distributed.size() > 1 or config.embedding.service != "auto"):
            raise UserError(
                "deterministic: with [[limits]] in the feature spec, which keys have rows depends on the time of the "
                "workers' requests: leave out one of the two, or train with one worker and no service"
            )
        embeddings = Embeddings(
            self.features,
            config.embedding,
            config.seed,
            store,
            ahead=0 if training is None or in_order else self._batches_ahead(config.prefetch_batches),
            trained=trained,
            scale=training.learning_rate_scale if training else None,
            uncached=within_training,
            in_order=in_order,
            first_step=notes().run_length.start if training else None,
        )

        def make_hook(batches: Iterable[tuple[Batch, Lookups]]) -> InputHook:
            rows = embeddings.feed(batches, training is not None)
            return InputHook(self.features, embeddings, rows, training, clock, self._has_read)

        per_step = notes().step_plan.accumulation_steps if training else 1
        return BatchFeed(
            self,
            self._reader,
            embeddings,
            make_hook,
            batches_per_step=per_step,
            prefetch_batches=config.prefetch_batches,
        )

    def _batches_ahead(self, prefetch_batches: int) -> int:
        """Returns how many batches' rows to pull at once; a record of a stream does not wait for other batches."""
        return min(prefetch_batches, 1) if self._reader.is_live else prefetch_batches


class BatchFeed(Feed):
    """Feeds the batches of a reader and the rows that they look up; before `rewind`, it feeds nothing.

    Args:
      inputs: the input of the graph.
      reader: reads the batches.
      embeddings: looks up the rows.
      make_hook: f(batches) -> `InputHook` that feeds the batches, which are from `Embeddings.prepare`.
      batches_per_step: number of batches in an optimizer step.
      prefetch_batches: number of batches that are read and looked up ahead.
    """

    embeddings: Embeddings

    def __init__(
        self,
        inputs: BatchInput,
        reader: GivenReader,
        embeddings: Embeddings,
        make_hook: Callable[[Iterable[tuple[Batch, Lookups]]], InputHook],
        *,
        batches_per_step: int,
        prefetch_batches: int,
    ) -> None:
        self._hook = make_hook(())
        super().__init__(inputs, [self._hook])
        self.embeddings = embeddings
        self._reader, self._make_hook = reader, make_hook
        self._batches, self._per_step = WholeSteps(reader, batches_per_step), batches_per_step
        self._ahead: OrderedMap[Any, tuple[Batch, Lookups]] = read_ahead((), 0)
        self._prefetch_batches = prefetch_batches

    @property
    def latencies(self) -> Sequence[Latency]:
        return [self._reader.read_latency, *self.embeddings.latencies]

    @property
    def batch(self) -> Batch:
        return self._hook.batch

    @property
    def examples(self) -> int:
        return self._hook.examples

    @property
    def steps(self) -> int | None:
        return None if self._reader.steps is None else -(-self._reader.steps // self._per_step)

    def rewind(self) -> None:
        self._end_reading()
        self.embeddings.begin()
        self._ahead = read_ahead(self.embeddings.prepare(self._batches), self._prefetch_batches)
        self._hook = self._make_hook(self._ahead)
        self.hooks = [self._hook]

    def flush(self) -> None:
        self.embeddings.flush()

    def position_after(self, steps: int) -> dict[str, Any] | None:
        return self._reader.position_after(self._batches.taken_by(steps))

    def committed(self, position: dict[str, Any] | None) -> None:
        if position is not None:
            self._reader.committed(position)

    @property
    def is_live(self) -> bool:
        return self._reader.is_live

    @property
    def stream_state(self) -> Callable[[], dict[str, float]] | None:
        return self._reader.stream_state

    @property
    def status_lines(self) -> Sequence[Callable[[], str]]:
        return self._reader.status_lines()

    def epochs_after(self, steps: int) -> float | None:
        known = progress(self.position_after(steps))
        return known[0] if known else None

    def with_columns(self, predictions: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the id columns, the labels if there are any, and the predictions of the batch's examples by name.

        The label is named `label`; it is float32, and NaN for an example without a label. If there are several labels,
        they are named `label/NAME`. A `_` is added to the name if an id column or a prediction has the same name.
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
        self._hook.close()
        self._ahead.close()


def _row_training(features: FedFeatures, loss: tf.Tensor, learning_rate: float) -> RowTraining:
    """Returns the training of the rows by the gradients of a loss, for a `train_op` that this package did not make."""
    rows = features.placeholders
    gradients = tf.gradients(loss, rows) if rows else []
    by_name = {row.name: g for row, g in zip(rows, gradients, strict=True) if g is not None}
    return RowTraining(by_name, tf.convert_to_tensor(learning_rate))
