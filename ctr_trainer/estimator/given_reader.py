"""A reader of batches that an `input_fn` returned."""

from ctr_trainer.graph_notes.run_length import Epochs
from ctr_trainer.measuring.latency import Latency
from ctr_trainer.measuring.phases import operation


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
        self._position_after = getattr(reader, "position_after", lambda steps: None)
        self.read_latency = Latency(operation("read"))

    def with_statistics(self, statistics):
        """-> the reader with other statistics: those that a model was trained with, which place its quantiles."""
        return GivenReader(self._reader.with_statistics(statistics))

    def position_after(self, steps):
        """-> where all workers stand when each has taken `steps` batches since the reader's start; None: not known."""
        return self._position_after(steps)

    def __iter__(self):
        return self.read_latency.each(self._reader)
