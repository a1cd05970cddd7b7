"""A model that is served: the newest record of a publication, and the tower that goes with it."""

import dataclasses
import threading
import time

import numpy as np

from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication.reader import RowsAhead
from ctr_trainer.scoring.batch_rows import look_up
from ctr_trainer.scoring.examples import Examples
from ctr_trainer.scoring.record_gate import RecordGate
from ctr_trainer.scoring.refusals import NotReady
from ctr_trainer.scoring.tower import Tower

_MOST_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Freshness:
    """Of which record an answer is.

    Attributes:
      generation, epoch, global_step: of the record.
      age_secs: seconds since the record's rows were taken from the training, as the answer was made.
    """

    generation: int
    epoch: int
    global_step: int
    age_secs: float


@dataclasses.dataclass(frozen=True)
class Scored:
    """Predictions.

    Attributes:
      outputs: dict of output -> array[B, ...].
      freshness: `Freshness`.
      seconds: dict of what was done -> how long it took: `keys`, `rows`, `tower`.
      distinct_keys: number of distinct keys whose rows were read.
    """

    outputs: dict
    freshness: Freshness
    seconds: dict
    distinct_keys: int = 0

    def part(self, first, count):
        """-> the Scored of `count` examples from the first one on."""
        outputs = {name: values[first : first + count] for name, values in self.outputs.items()}
        return dataclasses.replace(self, outputs=outputs)


class ServedModel:
    """Scores examples with one record from the first key to the last prediction, and changes to newer records.

    `score` is for any number of threads.

    Args:
      reader: `RowReader`.

    Raises:
      UserError: the tower cannot be loaded.
    """

    def __init__(self, reader):
        self._reader = reader
        self._gate = RecordGate()
        self._refreshing = threading.Lock()
        self._tower = _warmed(Tower(reader.dense_path()), reader.record)

    @property
    def name(self):
        """Of the model."""
        return self._reader.record.model

    @property
    def inputs(self):
        """-> the `RawInputs` that are served now."""
        return self._tower.inputs

    @property
    def outputs(self):
        """-> names of the predictions that are served now."""
        return self._tower.outputs

    @property
    def spec(self):
        """-> the FeatureSpec that is served now."""
        return self._tower.spec

    @property
    def freshness(self):
        """-> `Freshness` of what is served now."""
        record = self._reader.record
        return Freshness(record.generation, record.epoch, record.global_step, self._reader.age_secs())

    @property
    def cached(self):
        """-> (keys looked up in the reader's cache of rows, keys found there), since the start."""
        return self._reader.lookups, self._reader.hits

    def score(self, examples):
        """-> `Scored` of `Examples`.

        Raises:
          NotReady: the rows cannot be read now, or the model takes other features since the examples were checked.
        """
        for _ in range(_MOST_TRIES):
            try:
                with self._gate.batch():
                    if examples.inputs != self._tower.inputs:
                        raise NotReady("the model takes other features than a moment ago: send the request again")
                    return _score(self._tower, self._reader, examples, self.freshness)
            except RowsAhead:
                self.refresh()
            except NotReady:
                raise
            except UserError as error:
                raise NotReady(f"the rows cannot be read: {error}") from None
        raise NotReady("the rows are ahead of the record that is served: the publication is being replaced")

    def refresh(self):
        """Changes to a newer record if there is one.

        Returns:
          whether there was one.

        Raises:
          UserError: the publication or its tower cannot be read; what was served goes on to be served.
        """
        with self._refreshing:
            newer = self._reader.refresh()
            if newer is None:
                return False
            before, tower = self._tower, self._tower
            record = self._reader.record
            if (newer.generation, newer.dense) != (record.generation, record.dense):
                tower = _warmed(Tower(self._reader.dense_path(newer), before), newer)
            with self._gate.change():
                self._reader.advance()
                self._tower = tower
            if tower is not before:
                before.close()
            return True

    def close(self):
        """Frees the rows and the tower; no call may be under way."""
        self._tower.close()
        self._reader.close()


def _score(tower, reader, examples, freshness):
    times = [time.perf_counter()]
    arrays = examples.arrays()
    keys = tower.keys(arrays)
    times.append(time.perf_counter())
    rows, distinct_keys = look_up(tower.spec, tower.rows, keys, examples.count, reader.read)
    times.append(time.perf_counter())
    outputs = tower.predict(arrays, rows)
    times.append(time.perf_counter())
    seconds = dict(zip(("keys", "rows", "tower"), np.diff(times).tolist(), strict=True))
    return Scored(outputs, freshness, seconds, distinct_keys)


def _warmed(tower, record):
    """-> the tower, after two computations without rows: TensorFlow plans each graph at its first run.

    Raises:
      UserError: the record has no table that the tower reads, or an output has not one value per example.
    """
    widths = {name: config.weights for name, config in record.configs().items()}

    def no_rows(table, keys):
        if table not in widths:
            raise UserError(
                f"the tower {record.dense} reads table {table}, and the record of epoch {record.epoch} has "
                f"{', '.join(widths) or 'none'}: publish the model again"
            )
        return np.zeros((len(keys), widths[table]), np.float32)

    for count in (1, 2):
        arrays = Examples.missing(tower.inputs, count).arrays()
        rows, _ = look_up(tower.spec, tower.rows, tower.keys(arrays), count, no_rows)
        for name, values in tower.predict(arrays, rows).items():
            if values.shape[:1] != (count,):
                raise UserError(
                    f"output {name!r} of the tower {record.dense} has the shape {list(values.shape)} for {count} "
                    "examples: a served model gives one value per example"
                )
    return tower
