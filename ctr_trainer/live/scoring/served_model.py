"""A served model: the rows and the tower of the newest record of a publication."""

import dataclasses
import math
import threading
import time
from typing import Any

import numpy as np

from ctr_trainer.data.observations import form
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.live.publication.places import RowReader
from ctr_trainer.live.publication.reading import RowsAhead, pause
from ctr_trainer.live.publication.records import Record
from ctr_trainer.live.scoring.examples import Examples
from ctr_trainer.live.scoring.refusals import RequestRefused
from ctr_trainer.live.scoring.tower import RecordGate, Tower, TowerUnread, look_up
from ctr_trainer.system.messages.errors import UserError

_MOST_SECONDS = 5  # A batch waits for so long for a record of which the rows are not ahead.
_RETRY_SECONDS = 30.0  # A tower that could not be read is read again after this time.


class RecordRefused(UserError):
    """The tower of a record cannot be loaded, or its predictions are not finite."""


@dataclasses.dataclass(frozen=True)
class Freshness:
    """The record from which an answer was computed.

    Attributes:
      age_secs: seconds between the copy of the rows from the training and the answer.
      event_age_secs: seconds between the newest trained event of the stream and the answer; None without a stream, or
        before the first event.
      lag_records: number of the stream's records that waited when the rows were copied; None without a stream.
    """

    generation: int
    epoch: int
    global_step: int
    age_secs: float
    event_age_secs: float | None = None
    lag_records: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the values that are not None, for JSON."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Scored:
    """The predictions of a batch.

    Attributes:
      outputs: array[B, ...] by output.
      freshness: the record from which the outputs were computed.
      seconds: the duration of each part: `keys`, `rows`, `tower`.
      distinct_keys: number of distinct keys whose rows were read.
    """

    outputs: dict[str, np.ndarray]
    freshness: Freshness
    seconds: dict[str, float]
    distinct_keys: int = 0

    def part(self, first: int, count: int) -> "Scored":
        """Returns the predictions of `count` examples, starting at number `first`."""
        outputs = {name: values[first : first + count] for name, values in self.outputs.items()}
        return Scored(outputs, self.freshness, self.seconds, self.distinct_keys)


class ServedModel:
    """Scores each batch with the rows and the tower of one record, and switches to newer records.

    Any number of threads may call `score`.

    Attributes:
      reader: the reader of the publication, which `close` closes.
      tower: the tower of the served record.
      new_keys: the shares of keys without a row in the requests between two calls of `refresh`.

    Raises UserError: the tower cannot be loaded.
    """

    def __init__(self, reader: RowReader) -> None:
        self.reader = reader
        self._refused: Record | None = None
        self._retry_at = math.inf  # When the refused record is tried again.
        self._gate = RecordGate()
        self._refreshing = threading.Lock()
        with reader.tower(reader.record) as path:
            self.tower = _warmed(Tower(path), reader.record)
        self._arrays: dict[str, np.ndarray] = {}  # Those of the last batch.
        self.new_keys = self._count_of_keys(self.tower)
        self._spare: Tower | None = None  # The previous tower, whose session the next tower takes over.

    @property
    def freshness(self) -> Freshness:
        """The freshness of an answer that would be computed now."""
        record = self.reader.record
        event_age_secs = lag_records = None
        if record.stream is not None:
            lag_records = int(record.stream["lag_records"])
            if record.stream["event_seconds"]:  # Otherwise no event was trained yet.
                event_age_secs = max(time.time() - record.stream["event_seconds"], 0.0)
        age_secs = max(time.time() - record.time, 0.0)
        return Freshness(record.generation, record.epoch, record.global_step, age_secs, event_age_secs, lag_records)

    def score(self, examples: Examples) -> Scored:
        """Returns the predictions of examples.

        Raises:
          RequestRefused: the rows cannot be read now, or the model's columns changed after the examples were checked.
        """
        ends, is_ahead = time.monotonic() + _MOST_SECONDS, False
        while True:
            try:
                if is_ahead:
                    self.refresh()
                with self._gate.batch():
                    if examples.inputs != self.tower.inputs:
                        raise RequestRefused(
                            "the model was replaced by one with other columns: send the request again", status=503
                        )
                    return self._score(examples)
            except RequestRefused:
                raise
            except UserError as error:
                is_ahead = isinstance(error, RowsAhead) and time.monotonic() < ends
                if not is_ahead:
                    raise RequestRefused(f"the rows cannot be read: {error}", status=503) from None

    def refresh(self) -> bool:
        """Switches to the newest record unless it is served or is refused. Returns whether the record changed.

        Raises:
          RecordRefused: the tower of the newest record cannot be used; the previous record stays served.
          UserError: the publication cannot be read; the current record stays served.
        """
        with self._refreshing:
            self.new_keys.watch(self.tower.new_keys)
            newest = self.reader.refresh()
            if newest is None or (newest == self._refused and time.monotonic() < self._retry_at):
                return False
            before, record = self.tower, self.reader.record
            with self.reader.tower(newest) as path:
                spare, self._spare = self._spare, None
                try:
                    tower = _warmed(Tower(path, before, spare), newest)
                except UserError as error:
                    wait = _RETRY_SECONDS if isinstance(error, TowerUnread) else math.inf
                    self._refused, self._retry_at = newest, time.monotonic() + wait
                    raise RecordRefused(
                        f"{newest.kind} {newest.epoch} of generation {newest.generation} is not served, and epoch "
                        f"{record.epoch} of generation {record.generation} stays: {error}"
                    ) from None
            try:
                new_keys = self.new_keys if tower.spec == before.spec else self._count_of_keys(tower)
                with self._gate.change():
                    self.reader.advance()
                    self.tower, self.new_keys, self._refused = tower, new_keys, None
            except BaseException:
                tower.close()
                raise
            if tower.shares_graph(before):
                self._spare = before
            else:
                before.close()
            return True

    def close(self) -> None:
        """Frees the rows and the towers. No other call may be running."""
        for tower in filter(None, (self.tower, self._spare)):
            tower.close()
        self.reader.close()

    def _count_of_keys(self, tower: Tower) -> NewKeys:
        new_keys, forms = NewKeys(f.name for f in tower.spec.embedded), tower.forms
        columns = {name: columns[0] for name, columns in tower.spec.sources.items()}
        new_keys.forms = lambda name: (form(self._arrays[columns[name]].ravel().tolist()), forms.get(name, ""))
        return new_keys

    def _score(self, examples: Examples) -> Scored:
        freshness, times, tower = self.freshness, [time.perf_counter()], self.tower
        is_ranked = bool(examples.context)
        # The signature `ranking` derives the number of candidates from the candidates' features: it needs at least one.
        if is_ranked and (not tower.ranks or len(examples.context) == len(examples.inputs.columns)):
            examples, is_ranked = examples.expanded(), False
        self._arrays = arrays = examples.arrays()
        keys = tower.keys(arrays, is_ranked)
        times.append(time.perf_counter())
        of_batch = keys, examples.count, examples.context
        rows, distinct_keys = look_up(tower.spec, tower.rows, *of_batch, self.reader.read, self.new_keys.add)
        times.append(time.perf_counter())
        outputs = tower.predict(arrays, rows, is_ranked)
        times.append(time.perf_counter())
        seconds = dict(zip(("keys", "rows", "tower"), np.diff(times).tolist(), strict=True))
        return Scored(outputs, freshness, seconds, distinct_keys)


def _warmed(tower: Tower, record: Record) -> Tower:
    """Returns a tower after it ran on missing values, so that TensorFlow has planned it and its outputs are checked."""
    widths = {name: config.weights for name, config in record.configs().items()}

    def no_rows(table: str, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if table not in widths:
            raise UserError(
                f"the tower {record.dense} reads table {table}, and the record of epoch {record.epoch} has "
                f"{', '.join(widths) or 'none'}: publish the model again"
            )
        return np.zeros((len(keys), widths[table]), np.float32), np.zeros(len(keys), np.bool_)

    try:
        plans = [] if tower.is_planned else [(2, False), *([(2, True)] if tower.ranks else [])]
        for count, has_context in [(1, False), *plans]:
            examples = Examples.missing(tower.inputs, count, has_context)
            is_ranked, arrays = bool(examples.context), examples.arrays()
            pause()
            keys = tower.keys(arrays, is_ranked)
            rows, _ = look_up(tower.spec, tower.rows, keys, count, examples.context, no_rows, lambda *counts: None)
            pause()
            for name, values in tower.predict(arrays, rows, is_ranked).items():
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
