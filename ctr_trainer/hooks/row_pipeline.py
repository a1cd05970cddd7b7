"""When a step's rows are looked up and trained: in its turn, or beside the steps around it."""

import collections
import concurrent.futures


class RowsInTurn:
    """Looks a batch's rows up before its step and trains them after it, in the thread of the steps.

    Args:
      embeddings: `Embeddings`.
      batches: iterable of (`Batch`, lookups).
      training: whether keys without a row get one.
    """

    def __init__(self, embeddings, batches, training):
        self._embeddings, self._batches, self._training = embeddings, iter(batches), training

    def read(self):
        """-> (Batch, what `look_up` takes) of the next batch; StopIteration at the end."""
        return next(self._batches)

    def look_up(self, lookups):
        """-> `LookedUp`."""
        return self._embeddings.look_up(lookups, create=self._training)

    def train(self, call, *arguments):
        """Has `call`, a method of the `Embeddings` that takes gradients, done before any later lookup but the next."""
        call(*arguments)

    def finish_pending(self):
        """Nothing to do: every step's rows are trained when the step ends."""

    def close(self):
        """Nothing to do."""


class RowPipeline:
    """While a step runs, trains the rows of the step before it and then looks up those of the step after it.

    One thread does these in a fixed order, so a run is as repeatable as one without:

        thread of the steps:   step t          step t+1          step t+2
        this one:              train t-1, look up t+1   train t, look up t+2   ...

    Staleness: a step reads rows that lack the step before it, and no other. Before a sync, a checkpoint or an
    evaluation all is trained, and the batch that was looked up already is so again: rows are whole there, and a resumed
    run goes on like one that was not interrupted.

    Caveat: a key of the batch looked up ahead gets its row then, so a checkpoint may hold rows that no step has trained
    yet. Not for tables with limits, whose rows may go while a step is to train them.

    Args:
      embeddings: `Embeddings`.
      batches: iterable of (`Batch`, lookups), to be trained.

    Source: the semi-synchronous training pipelines of TorchRec (`TrainPipelineSemiSync`).
    """

    def __init__(self, embeddings, batches):
        self._embeddings, self._batches = embeddings, iter(batches)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "embedding rows")
        self._trainings = collections.deque()
        self._next = None  # (Batch, lookups, Future of LookedUp); None before the first batch and behind the last.
        self._has_begun = False

    def read(self):
        """As `RowsInTurn`."""
        if not self._has_begun:
            self._has_begun = True
            self._prepare()
        if self._next is None:
            raise StopIteration
        return self._next[0], self._next

    def look_up(self, prepared):
        """As `RowsInTurn`; starts the lookup of the next batch."""
        _, lookups, future = prepared
        looked_up = future.result() if future else self._start(lookups).result()
        while self._trainings and self._trainings[0].done():
            self._trainings.popleft().result()  # Raises what it raised.
        self._prepare()
        return looked_up

    def train(self, call, *arguments):
        """As `RowsInTurn`, in this thread's order."""
        self._trainings.append(self._thread.submit(call, *arguments))

    def finish_pending(self):
        """Trains all rows of the steps so far, before a sync or a flush."""
        while self._trainings:
            self._trainings.popleft().result()
        if self._next is not None:
            batch, lookups, future = self._next
            if future is not None:
                future.result()
            self._next = batch, lookups, None

    def close(self):
        """Waits for what is under way, whatever becomes of it."""
        self._thread.shutdown(cancel_futures=True)

    def _prepare(self):
        try:
            batch, lookups = next(self._batches)
        except StopIteration:
            self._next = None
        else:
            self._next = batch, lookups, self._start(lookups)

    def _start(self, lookups):
        return self._thread.submit(self._embeddings.look_up, lookups, create=True)
