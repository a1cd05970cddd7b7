"""A model that is served: the newest record of a publication, and the tower that goes with it."""

import contextlib
import dataclasses
import threading
import time

import numpy as np

from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication.places import RowReader
from ctr_trainer.publication.reading import RowsAhead
from ctr_trainer.publication.records import Record
from ctr_trainer.scoring.examples import Examples
from ctr_trainer.scoring.raw_inputs import NotReady
from ctr_trainer.scoring.tower import Tower, look_up

_SECONDS = 60
_MOST_TRIES = 3


class RecordGate:
    """Lets any number of batches in, or one change of the record alone. A change that waits holds new batches back."""

    def __init__(self):
        self._condition = threading.Condition()
        self._batches = 0
        self._changing = False

    @contextlib.contextmanager
    def batch(self):
        """A context manager around one batch."""
        with self._condition:
            self._wait(lambda: not self._changing, "the change to a newer record")
            self._batches += 1
        try:
            yield
        finally:
            with self._condition:
                self._batches -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def change(self):
        """A context manager around a change; for one thread at a time. Waits until no batch is under way."""
        with self._condition:
            self._changing = True
        try:
            with self._condition:
                self._wait(lambda: not self._batches, "the batches under way")
            yield
        finally:
            with self._condition:
                self._changing = False
                self._condition.notify_all()

    def _wait(self, is_over, what):
        if not self._condition.wait_for(is_over, _SECONDS):
            raise TimeoutError(f"{what} did not end within {_SECONDS} s")


class RecordRefused(UserError):
    """A record whose tower cannot be loaded, or whose scores are not finite."""


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

    def __init__(self, reader: RowReader):
        self._reader = reader
        self._refused: Record | None = None
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
    def typical(self) -> dict[str, float | str]:
        """Typical values of some features, see `Tower`."""
        return self._tower.typical

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
    def lost(self) -> str:
        """What the place has lost of the served rows; "" if nothing."""
        return self._reader.lost

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
                self._catch_up()
            except NotReady:
                raise
            except UserError as error:
                raise NotReady(f"the rows cannot be read: {error}") from None
        raise NotReady("the rows are ahead of the record that is served: the publication is being replaced")

    def _catch_up(self) -> None:
        try:
            self.refresh()
        except UserError as error:
            raise NotReady(f"the rows are ahead of the record that is served: {error}") from None

    def refresh(self) -> bool:
        """Changes to the newest record, unless that is served, or was refused already.

        Returns:
          whether the record has changed.

        Raises:
          RecordRefused: the tower of the newest record cannot be used; the record before stays served.
          UserError: the publication cannot be read; what is served stays served.
        """
        with self._refreshing:
            newest = self._reader.refresh()
            if newest is None or newest == self._refused:
                return False
            before, record = self._tower, self._reader.record
            same = (newest.generation, newest.dense, newest.dense_files)
            try:
                if same == (record.generation, record.dense, record.dense_files):
                    tower = before
                else:
                    tower = _warmed(Tower(self._reader.dense_path(newest), before), newest)
            except UserError as error:
                self._refused = newest
                raise RecordRefused(
                    f"{newest.kind} {newest.epoch} of generation {newest.generation} is not served, and epoch "
                    f"{record.epoch} of generation {record.generation} stays: {error}"
                ) from None
            with self._gate.change():
                self._reader.advance()
                self._tower, self._refused = tower, None
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


def _warmed(tower: Tower, record: Record) -> Tower:
    """Returns the tower, after two computations without rows: TensorFlow plans each graph at its first run.

    Raises:
      UserError: the record has no table that the tower reads, or an output has not one finite value per example.
    """
    widths = {name: config.weights for name, config in record.configs().items()}

    def no_rows(table, keys):
        if table not in widths:
            raise UserError(
                f"the tower {record.dense} reads table {table}, and the record of epoch {record.epoch} has "
                f"{', '.join(widths) or 'none'}: publish the model again"
            )
        return np.zeros((len(keys), widths[table]), np.float32)

    try:
        for count in (1, 2):
            arrays = Examples.missing(tower.inputs, count).arrays()
            rows, _ = look_up(tower.spec, tower.rows, tower.keys(arrays), count, no_rows)
            for name, values in tower.predict(arrays, rows).items():
                _check_output(name, values, count, record)
    except BaseException:
        tower.close()
        raise
    return tower


def _check_output(name: str, values: np.ndarray, count: int, record: Record) -> None:
    if values.shape[:1] != (count,):
        raise UserError(
            f"output {name!r} of the tower {record.dense} has the shape {list(values.shape)} for {count} "
            "examples: a served model gives one value per example"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise UserError(
            f"output {name!r} of the tower {record.dense}, global step {record.global_step}, is "
            f"{values[~np.isfinite(values)].flat[0]} for an example without values: the training has diverged; publish "
            "an earlier checkpoint"
        )
