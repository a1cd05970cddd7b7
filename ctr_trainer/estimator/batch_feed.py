"""The input of a reader of batches: placeholders, and the batches and rows that are fed to them."""

import dataclasses

import numpy as np
import tensorflow as tf

from ctr_trainer.data.read_ahead import read_ahead
from ctr_trainer.data.row_order import progress
from ctr_trainer.estimator.embeddings import Embeddings
from ctr_trainer.estimator.feed import Feed, GraphInput
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.graph_notes.notes import RowTraining, notes
from ctr_trainer.graph_notes.run_length import Epochs
from ctr_trainer.hooks.input_hook import InputHook
from ctr_trainer.measuring.latency import Latency
from ctr_trainer.measuring.phases import operation
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed


class GivenReader:
    """Reads what another reader does, and says None of what that one does not know.

    Args:
      reader: a `data.reader.BatchReader`, or any iterable of `Batch` with its `spec`, `statistics` and `batch_size`.
        Of a spec with quantiles it needs `with_statistics` too, to be evaluated on data with statistics of their own.

    Attributes:
      spec, statistics, batch_size: the reader's.
      steps: batches from its start to its end.
      steps_per_epoch: batches of a whole epoch.
      in_epochs: `Epochs`.
      epochs: the number of the epoch that it stops before.
      is_live: whether examples come one after another, as in a stream.
      committed: f(position), called once a checkpoint with it is complete.
      status_lines: f() -> list of f() -> a line for the log.
      event_time: f() -> the newest event time, as text; None where it is not known.
      read_latency: OpsReadSample: for each batch, how long the reader took to give it.
    """

    def __init__(self, reader):
        self._reader = reader
        self.spec, self.statistics, self.batch_size = reader.spec, reader.statistics, reader.batch_size
        self.steps, self.epochs = getattr(reader, "steps", None), getattr(reader, "epochs", None)
        self.steps_per_epoch = getattr(reader, "steps_per_epoch", None)
        knows = hasattr(reader, "steps_per_epoch") and hasattr(reader, "steps_before")
        rows = getattr(reader, "rows", None)
        self.in_epochs = Epochs(reader.steps_per_epoch, reader.steps_before, rows) if knows else None
        self.is_live = getattr(reader, "is_live", False)
        self._position_after = getattr(reader, "position_after", lambda steps: None)
        self.committed = getattr(reader, "committed", lambda position: None)
        self.status_lines = getattr(reader, "status_lines", list)
        self.event_time = getattr(reader, "event_time", None)
        self.read_latency = Latency(operation("read"))

    def with_statistics(self, statistics):
        """Returns the reader with other statistics: those that a model was trained with, which place its quantiles."""
        return GivenReader(self._reader.with_statistics(statistics))

    def position_after(self, steps):
        """Returns where all workers stand after `steps` batches of each since the reader's start; None if not known."""
        return self._position_after(steps)

    def __iter__(self):
        return self.read_latency.each(self._reader)


class WholeSteps:
    """A reader's batches, then, where the last optimizer step is short of some, as many of weight zero.

    So the last examples are trained on although they do not fill a step. All ranks have as many batches, so they fill
    up alike. The batches added are the last one over again: they look up no row that the step has not.

    Args:
      batches: iterable of `Batch`.
      batches_per_step: of an optimizer step.
    """

    def __init__(self, batches, batches_per_step):
        self._batches, self._per_step = batches, batches_per_step
        self._count = None

    def __iter__(self):
        count, last = 0, None
        for last in self._batches:
            count += 1
            yield last
        self._count = count
        for _ in range(-count % self._per_step):
            yield dataclasses.replace(last, size=0, weights=np.zeros_like(last.weights))

    def taken_by(self, steps):
        """Returns how many of the reader's own batches were in the first `steps` steps."""
        batches = steps * self._per_step
        return batches if self._count is None else min(batches, self._count)


class BatchInput(GraphInput):
    """Placeholders of the features of a reader's batches.

    Args:
      reader: `GivenReader`.
      spec, statistics: of the data that the model was trained on; the reader's own for a new model.
      has_read: f(), called after each batch; None for nothing.
    """

    fed = True

    def __init__(self, reader, spec, statistics, has_read=None):
        features = FedFeatures(spec, statistics, reader.batch_size)
        super().__init__(features, features.labels)
        self._reader, self._has_read = reader, has_read
        self.batch_size, self.batches, self.epochs = reader.batch_size, reader.steps, reader.epochs
        self.batches_per_epoch, self.in_epochs = reader.steps_per_epoch, reader.in_epochs

    @property
    def uses_embeddings(self):
        return bool(self.features.segments)

    def weights(self, labels):
        return self.features["weight"]

    def connect(self, store, config, spec=None, trained=None, within_training=False, clock=None):
        training = None
        if spec is not None:
            rate = config.embedding.learning_rate
            training = notes().row_training or _row_training(self.features, spec.loss, rate)
        if training and config.embedding.overlap_lookup and self.features.spec.limits:
            raise UserError(
                "overlap_lookup: with [[limits]] of the feature spec a row could go while a step is to train it: leave "
                "out one of the two"
            )
        in_order = config.deterministic and training is not None
        if in_order and self.features.spec.limits and (distributed.size() > 1 or config.embedding.service != "auto"):
            raise UserError(
                "deterministic: with [[limits]] of the feature spec, which keys have rows depends on when workers ask "
                "the store: leave out one of the two, or train with one worker and no service"
            )
        embeddings = Embeddings(
            self.features,
            config.embedding,
            config.seed,
            store,
            # To pull rows ahead of their lookup is a matter of time.
            # Where records come one after another, none of them waits for the batches that are pulled with its own.
            (min(config.prefetch_batches, 1) if self._reader.is_live else config.prefetch_batches)
            if training and not in_order
            else 0,
            trained,
            training and training.learning_rate_scale,
            within_training,
            in_order,
        )

        def make_hook(batches):
            rows = embeddings.feed(batches, training is not None)
            return InputHook(self.features, embeddings, rows, training, clock, self._has_read)

        per_step = notes().step_plan.accumulation_steps if training else 1
        return BatchFeed(self, self._reader, embeddings, make_hook, per_step, config.prefetch_batches)


class BatchFeed(Feed):
    """Feeds the batches of a reader, and the rows that they look up; before `rewind`, none.

    Args:
      inputs: the `BatchInput`.
      reader: `GivenReader`.
      embeddings: `Embeddings`.
      make_hook: f(batches) -> `InputHook` that feeds them, of an iterable of what `Embeddings.prepare` yields.
      batches_per_step: of an optimizer step.
      prefetch_batches: how many are read and looked up ahead.
    """

    def __init__(self, inputs, reader, embeddings, make_hook, batches_per_step, prefetch_batches):
        self._hook = make_hook(())
        super().__init__(inputs, [self._hook])
        self.embeddings = embeddings
        self._reader, self._make_hook = reader, make_hook
        self._batches, self._per_step = WholeSteps(reader, batches_per_step), batches_per_step
        self._ahead, self._prefetch_batches = read_ahead((), 0), prefetch_batches

    @property
    def latencies(self):
        return [self._reader.read_latency, *self.embeddings.latencies]

    @property
    def batch(self):
        return self._hook.batch

    @property
    def examples(self):
        return self._hook.examples

    @property
    def steps(self):
        return None if self._reader.steps is None else -(-self._reader.steps // self._per_step)

    def rewind(self):
        self._end_reading()
        self.embeddings.begin()
        self._ahead = read_ahead(self.embeddings.prepare(self._batches), self._prefetch_batches)
        self._hook = self._make_hook(self._ahead)
        self.hooks = [self._hook]

    def flush(self):
        self.embeddings.flush()

    def position_after(self, steps):
        return self._reader.position_after(self._batches.taken_by(steps))

    def committed(self, position):
        if position is not None:
            self._reader.committed(position)

    @property
    def is_live(self):
        return self._reader.is_live

    @property
    def event_time(self):
        return self._reader.event_time

    @property
    def status_lines(self):
        return self._reader.status_lines()

    def epochs_after(self, steps):
        known = progress(self.position_after(steps))
        return known and known[0]

    def beside(self, predictions):
        """Returns the values of the batch's examples by column: id columns, labels if there are any, predictions.

        The label is named `label`, float32, NaN for an example that has none; of several, `label/NAME`. A `_` is added
        to a name that an id column or a prediction has.
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

    def close(self):
        self._end_reading()
        self.embeddings.close()

    def _end_reading(self):
        self._hook.close()
        self._ahead.close()


def _row_training(features: FedFeatures, loss: tf.Tensor, learning_rate: float) -> RowTraining:
    """Returns the training of the rows by the gradients of a loss, for a `train_op` not made by this package."""
    rows = features.placeholders
    gradients = tf.gradients(loss, rows) if rows else []
    by_name = {row.name: g for row, g in zip(rows, gradients, strict=True) if g is not None}
    return RowTraining(by_name, tf.convert_to_tensor(learning_rate))
