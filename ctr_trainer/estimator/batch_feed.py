"""Input from a batch reader: placeholders, and the batches and embedding rows that are fed to them."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ctr_trainer.data.batch import Batch
from ctr_trainer.data.read_ahead import OrderedMap, read_ahead
from ctr_trainer.data.row_order import progress
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.worker_rows import RowStep
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator.built_step import BuiltStep
from ctr_trainer.estimator.embeddings import Embeddings, Lookups, TableLookup
from ctr_trainer.estimator.feed import Fed, Feed, GraphInput
from ctr_trainer.estimator.inputs import GivenReader, WholeSteps
from ctr_trainer.estimator.open_embeddings import open_embeddings
from ctr_trainer.features.columns import FORM, Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError


class BatchInput(GraphInput):
    """Placeholders for the features of a reader's batches.

    Args:
      spec, statistics: the feature spec and the statistics of the training data; for a new model, the reader's own.
    """

    fed = True
    features: FedFeatures

    def __init__(self, reader: GivenReader, spec: FeatureSpec, statistics: Statistics | None) -> None:
        features = FedFeatures(spec, statistics, reader.batch_size)
        super().__init__(features, features.labels)
        self.reader = reader
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

    @property
    def placeholders(self) -> Sequence[tf.Tensor]:  # type: ignore[override]
        return self.features.placeholders


def connect(
    inputs: GraphInput,
    store: Store,
    config: RunConfig,
    step: BuiltStep | None = None,
    *,
    trained: Mapping[str, TableConfig] | None = None,
    within_training: bool = False,
    clock: Clock | None = None,
) -> Feed:
    """Returns the `Feed` of a model that was built. The feed reads nothing before its `rewind` is called. A collective.

    Args:
      inputs: the input from which the model was built.
      store: the store of the embedding rows; see `open_store`.
      step: the step of the model to train; None to evaluate or predict.
      trained: dict of table name -> the `TableConfig` with which the table was trained; None to train the tables
        according to `config`.
      within_training: whether this input is evaluated while another input trains. If so, each step reads the rows from
        the store.
      clock: `Clock` of the training thread; None if it is not needed.

    Raises:
      UserError: the settings do not fit the data.
    """
    if not isinstance(inputs, BatchInput):
        return Feed(inputs, trains=step is not None)
    ahead = config.prefetch_batches
    if step is None or config.deterministic:
        ahead = 0
    elif inputs.reader.is_live:
        ahead = min(ahead, 1)  # So that the records of a stream do not wait for later batches.
    has_others = distributed.size() > 1 or config.embedding.service != "auto"
    if step is not None and config.deterministic and inputs.features.spec.limits and has_others:
        raise UserError(
            "deterministic: with [[limits]] in the feature spec, which keys have rows depends on the time of the "
            "workers' requests: leave out one of the two, or train with one worker and no service"
        )
    embeddings = open_embeddings(
        inputs.features, config, store, step, ahead=ahead, trained=trained, uncached=within_training
    )
    return BatchFeed(inputs, embeddings, step, config.prefetch_batches, clock)


class BatchFeed(Feed):
    """Feeds a reader's batches and their embedding rows. Has no batches before `rewind` is called.

    Args:
      step: the step to train; None to evaluate or predict, where keys without a row get no row.
      prefetch_batches: number of batches to read and look up ahead.
    """

    embeddings: Embeddings

    def __init__(
        self,
        inputs: BatchInput,
        embeddings: Embeddings,
        step: BuiltStep | None,
        prefetch_batches: int,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(inputs, trains=False)
        self._features, self._reader, self.embeddings = inputs.features, inputs.reader, embeddings
        self._training, self._prefetch_batches = step.rows if step is not None else None, prefetch_batches
        self._clock = clock or Clock()
        reader, per_step = inputs.reader, step.accumulation_steps if step is not None else 1
        self._batches = WholeSteps(reader, per_step)
        self._ahead: OrderedMap[Any, tuple[Batch, Lookups]] = read_ahead((), 0)
        self._rows_of: list[str] = []
        if (training := self._training) is not None and training.gradients:
            # The rate and the share belong to the whole step. Fetching them with an earlier micro-batch would exchange
            # the gradients of an incomplete step.
            self._rows_of, self.fetches = list(training.gradients), list(training.gradients.values())
            self.last_fetches = [*self.fetches, training.learning_rate]
            self.last_fetches += [training.share] if training.share is not None else []
        self.steps = None if reader.steps is None else -(-reader.steps // per_step)
        self.is_live, self.stream_state = reader.is_live, reader.stream_state
        self.status_lines = reader.status_lines(embeddings.new_keys)
        self.latencies = [reader.read_latency, *embeddings.latencies]
        self.new_keys = embeddings.new_keys
        here, trained = reader.statistics or {}, inputs.features.statistics or {}
        self.new_keys.forms = lambda name: (here.get(name, {}).get(FORM, ""), trained.get(name, {}).get(FORM, ""))

    def rewind(self) -> None:
        self._ahead.close()
        done, per_epoch = self.epochs_after(0), self._reader.steps_per_epoch
        self.new_keys.limit = float("inf") if done is None or per_epoch is None else (1 - done) * per_epoch
        self.embeddings.begin()
        self._ahead = read_ahead(self.embeddings.prepare(self._batches), self._prefetch_batches)
        self.examples = 0

    def next(self) -> Fed:
        with self._clock.within("feed"):
            with self._clock.within("read"):
                batch, lookups = next(self._ahead)  # Read ahead by a thread.
            with self._clock.within("lookup"):
                rows, tables = self.embeddings.look_up(lookups, create=self._training is not None)
            self.examples += batch.size
            return Fed(rows | self._features.feed(batch), batch, tables)

    def add(self, fed: Fed, fetched: list[np.ndarray]) -> None:
        with self._clock.within("update"):
            self.embeddings.add_gradients(*self._gradients(fed, fetched))

    def train(self, fed: Fed, fetched: list[np.ndarray]) -> None:
        if self._rows_of:
            with self._clock.within("update"):
                step = RowStep(*map(float, fetched[len(self._rows_of) :]))
                self.embeddings.apply_gradients(*self._gradients(fed, fetched), step)

    def _gradients(
        self, fed: Fed, fetched: list[np.ndarray]
    ) -> tuple[Sequence[TableLookup], dict[str, np.ndarray], float]:
        """Returns the lookups of a batch, the gradients of its rows, and the weight of the batch in its step."""
        assert fed.batch is not None and self._training is not None
        weight = 1.0 if self._training.share is None else float(np.sum(fed.batch.weights))
        return fed.tables, dict(zip(self._rows_of, fetched, strict=False)), weight

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

    def with_columns(self, fed: Fed, predictions: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns a dict of the id columns, the labels, if any, and the predictions for the examples of the batch.

        The label is named `label`; it is float32, and NaN for an example without a label. If there are several labels,
        they are named `label/NAME`. If an id column or a prediction has the same name, `_` is appended to the label's.
        """
        batch, spec = fed.batch, self._reader.spec
        assert batch is not None
        columns = {**batch.ids}
        if spec.labelled:
            several = [f"label/{label.name}" for label in spec.labels] if spec.other_labels else ["label"]
            for name, labels in zip(several, batch.labels.reshape(len(batch.labels), -1).T, strict=True):
                while name in columns or name in predictions:
                    name += "_"
                columns[name] = labels
        return {name: value[: batch.size] for name, value in {**columns, **predictions}.items()}

    def close(self) -> None:
        self._ahead.close()
        self.embeddings.syncs.close()
