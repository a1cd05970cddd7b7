"""Feeds the batches of a reader, and the rows that they look up."""

from ctr_trainer.data.position import progress
from ctr_trainer.data.read_ahead import read_ahead
from ctr_trainer.estimator.feed import Feed
from ctr_trainer.estimator.whole_steps import WholeSteps


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

    def epochs_after(self, steps):
        known = progress(self.position_after(steps))
        return known and known[0]

    def beside(self, predictions):
        """-> by column, the values of the examples of `batch`: id columns, labels if the data has any, predictions.

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
