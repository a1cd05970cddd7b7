"""Input from a batch reader: placeholders, and the batches and embedding rows that are fed to them."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.data.batch import Batch
from ctr_trainer.data.read_ahead import OrderedMap
from ctr_trainer.data.row_order import progress
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator.built_step import BuiltStep
from ctr_trainer.estimator.embeddings import Embeddings, Lookups
from ctr_trainer.estimator.feed import Fed, Feed
from ctr_trainer.estimator.inputs import GraphInput
from ctr_trainer.estimator.open_embeddings import open_embeddings
from ctr_trainer.estimator.run_length import Epochs
from ctr_trainer.features.columns import FORM, Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import PHASES, Clock
from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.messages.errors import UserError

_FETCHING = 4  # Batches whose rows are read from disk concurrently.


class BatchInput(GraphInput):
    """Placeholders for the features of a reader's batches.

    Args:
      reader: a `data.reader.BatchReader`, or another iterable of `Batch` with `spec`, `statistics` and `batch_size`.
        Other attributes of a reader are optional. If its spec has quantiles, it also needs `with_statistics`, so that a
        model can be evaluated on data with other statistics.
      spec, statistics: the feature spec and the statistics of the training data; for a new model, the reader's own.
    """

    fed = True
    features: FedFeatures

    def __init__(self, reader: Any, spec: FeatureSpec, statistics: Statistics | None) -> None:
        features = FedFeatures(spec, statistics, reader.batch_size)
        super().__init__(features, features.labels)
        self.reader = reader
        self.batches, self.epochs = getattr(reader, "steps", None), getattr(reader, "epochs", None)
        self.batches_per_epoch = getattr(reader, "steps_per_epoch", None)
        before = getattr(reader, "steps_before", None)
        if self.batches_per_epoch is not None and before is not None:
            self.in_epochs = Epochs(self.batches_per_epoch, before, getattr(reader, "rows", None))

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
      step: the step of the model to train; None to evaluate or predict.
      trained: dict of table name -> the `TableConfig` with which the table was trained; None to train the tables
        according to `config`.
      within_training: whether this input is evaluated while another input trains. If so, each step reads the rows from
        the store.
      clock: `Clock` of the training thread; None if it is not needed.

    Raises UserError: the settings do not fit the data.
    """
    if not isinstance(inputs, BatchInput):
        return Feed(inputs, trains=step is not None)
    ahead = config.prefetch_batches
    if step is None or config.deterministic:
        ahead = 0
    elif getattr(inputs.reader, "is_live", False):
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

    `step` is the step to train; None to evaluate or predict, where keys without a row get no row.
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
        self._step, self._prefetch_batches = step, prefetch_batches
        self._clock = clock or Clock()
        reader, self._per_step = inputs.reader, step.run_length.accumulation_steps if step is not None else 1
        self._read_latency = Latency(PHASES["read"].operation)
        self._count: int | None = None  # Of the reader's own batches, once it has ended.
        self._ahead: OrderedMap[Any, tuple[Batch, Lookups]] = OrderedMap((), ())
        self._rows_of: list[str] = []
        if step is not None and step.row_gradients:
            # The rate and the share belong to the whole step. Fetching them with an earlier micro-batch would exchange
            # the gradients of an incomplete step.
            self._rows_of, self.fetches = list(step.row_gradients), list(step.row_gradients.values())
            self.last_fetches = [*self.fetches, step.row_learning_rate]
            self.last_fetches += [step.share] if step.share is not None else []
        self.is_live, self.stream_state = getattr(reader, "is_live", False), getattr(reader, "stream_state", None)
        self.status_lines = reader.status_lines(embeddings.new_keys) if hasattr(reader, "status_lines") else ()
        self.latencies = [self._read_latency, *embeddings.latencies]
        self.new_keys = embeddings.new_keys
        here, trained = reader.statistics or {}, inputs.features.statistics or {}
        self.new_keys.forms = lambda name: (here.get(name, {}).get(FORM, ""), trained.get(name, {}).get(FORM, ""))

    def rewind(self) -> None:
        self._ahead.close()
        done, per_epoch = self.epochs_after(0), self.inputs.batches_per_epoch
        self.new_keys.limit = float("inf") if done is None or per_epoch is None else (1 - done) * per_epoch
        self.embeddings.begin()
        # While a disk reads the rows of one batch, it gets the requests of the next ones.
        threads = min(self._prefetch_batches, _FETCHING if self.embeddings.on_disk else 1)
        prepared = self.embeddings.prepare(self._whole_steps())
        fetches = [self.embeddings.fetch] * threads
        self._ahead = OrderedMap(fetches, prepared, "prefetching", ahead=self._prefetch_batches + 1)
        self.examples = 0

    def begin_training(self, session: tf1.Session, step: int) -> None:
        assert self._step is not None
        rate = self._step.row_learning_rate
        self.embeddings.begin_training(step, lambda: float(session.run(rate)))

    def next(self) -> Fed:
        with self._clock.within("feed"):
            with self._clock.within("read"):
                batch, lookups = next(self._ahead)  # Read ahead by a thread.
            with self._clock.within("lookup"):
                rows, tables = self.embeddings.look_up(lookups, create=self._step is not None)
            self.examples += batch.size
            return Fed(rows | self._features.feed(batch), batch, tables)

    def add(self, fed: Fed, fetched: list[np.ndarray]) -> None:
        with self._clock.within("update"):
            self._add_gradients(fed, fetched)

    def train(self, fed: Fed, fetched: list[np.ndarray]) -> None:
        if self._rows_of:
            with self._clock.within("update"):
                self._add_gradients(fed, fetched)
                rate, *shares = map(float, fetched[len(self._rows_of) :])
                assert fed.batch is not None
                self.embeddings.apply_gradients(rate, shares[0] if shares else float(fed.batch.weights.any()))

    def _add_gradients(self, fed: Fed, fetched: list[np.ndarray]) -> None:
        assert fed.batch is not None and self._step is not None
        weight = 1.0 if self._step.share is None else float(np.sum(fed.batch.weights))
        self.embeddings.add_gradients(fed.tables, dict(zip(self._rows_of, fetched, strict=False)), weight)

    def sync_if_due(self, step: int) -> None:
        self.embeddings.sync_if_due(step, self._clock)

    def flush(self) -> None:
        self.embeddings.flush()

    def position_after(self, steps: int) -> dict[str, Any] | None:
        if not hasattr(self._reader, "position_after"):
            return None
        batches = steps * self._per_step
        return self._reader.position_after(batches if self._count is None else min(batches, self._count))

    def committed(self, position: dict[str, Any] | None) -> None:
        if position is not None and hasattr(self._reader, "committed"):
            self._reader.committed(position)

    def epochs_after(self, steps: int) -> float | None:
        known = progress(self.position_after(steps))
        return known[0] if known else None

    def with_columns(self, fed: Fed, predictions: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns a dict of the id columns, the labels, if any, and the predictions for the examples of the batch.

        The label is named `label`, or `label/NAME` if there are several. It is float32, and NaN for an example without
        a label. If an id column or a prediction has the same name, `_` is appended to the label's.
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

    def _whole_steps(self) -> Iterator[Batch]:
        """Yields the reader's batches, and zero-weight batches that complete the last step, as many on each rank."""
        count = 0
        for last in self._read_latency.each(self._reader):
            count += 1
            yield last
        self._count = count
        for _ in range(-count % self._per_step):  # Repeats the last batch, if there is one: it looks up no other row.
            yield dataclasses.replace(last, size=0, weights=np.zeros_like(last.weights))

    def close(self) -> None:
        self._ahead.close()
        self.embeddings.syncs.close()
