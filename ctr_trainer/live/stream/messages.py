"""Decodes the messages of a stream: JSON objects, `tf.train.Example`, or Arrow IPC streams of many examples.

| a message begins with | it is |
|---|---|
| `{`, after optional blanks, without the byte 0x12 | a JSON object, one example |
| the byte 0xFF, or `ARROW1` | an Arrow IPC stream or file, one example per row |
| the byte 0x0A, otherwise | a `tf.train.Example` |

Raw values are converted to keys and numbers according to the feature spec, as for Parquet files; see `data.typed`. If a
message lacks a column, the feature of this column is missing.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ctr_trainer.data import typed
from ctr_trainer.data.batch import array_of, rows_of
from ctr_trainer.data.blocks import BadRow
from ctr_trainer.data.encode import Encoder
from ctr_trainer.data.observations import Observations
from ctr_trainer.features import hashing
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.live.arrow_messages import ArrowMessages, BadArrow
from ctr_trainer.live.stream.json_messages import JsonReader, text_of
from ctr_trainer.live.stream.source import Message
from ctr_trainer.system.messages.errors import UserError, cut

_FORMATS = "a JSON object, a serialized tf.train.Example or an Arrow IPC stream"
# Limits of an Arrow message when it is decoded, 16 times the limits of a request to `score`; and of an Example.
_MOST_BYTES, _MOST_VALUES = 64 << 20, 1 << 21
_Read = Iterator[tuple[pa.Table, np.ndarray, list[tuple[int, str]]]]


@dataclasses.dataclass(frozen=True)
class BadMessage:
    """A message, or a row of a message, that cannot be trained on.

    Attributes:
      message: index among the decoded messages.
      row: index of the row in the message.
    """

    message: int
    row: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Decoded:
    """Rows of messages, in order.

    Attributes:
      messages, places: int64[n]; for each row, the index of its message, and the index of the row in this message.
      bad: the messages and rows that were left out.
    """

    rows: pa.Table
    messages: np.ndarray
    places: np.ndarray
    bad: list[BadMessage] = dataclasses.field(default_factory=list)

    def take(self, chosen: np.ndarray) -> "Decoded":
        """Returns the rows with these indices."""
        return Decoded(self.rows.take(pa.array(chosen)), self.messages[chosen], self.places[chosen], self.bad)


_ARROW = ArrowMessages(_MOST_BYTES, _MOST_VALUES, "the limit of a message")


class MessageDecoder:
    """Decodes the messages of a stream. It is not thread-safe.

    Args:
      statistics: statistics of the training data, with the boundaries of quantiles.
      late: name of a label, and of the label that may be 1 only if the first one is; None without such labels.
    """

    def __init__(
        self, spec: FeatureSpec, statistics: dict[str, dict], name: str, late: tuple[str, str] | None = None
    ) -> None:
        self._late = late
        self._spec, self._name = dataclasses.replace(spec, ids=()), name
        self._wanted = typed.uses(self._spec)
        self._buckets = hashing.buckets_of(spec, statistics)
        self._encoder = Encoder(self._spec)
        self._json = JsonReader(self._wanted)
        self._examples: Any = None  # An `ExampleReader`, created for the first Example.

    def decode(self, messages: Sequence[Message], skip: dict[int, int] | None = None) -> Decoded:
        """Decodes messages. `skip`: index of a message -> number of its first rows to skip."""
        bad: list[BadMessage] = []
        parts = [part for raw in self._tables(messages, bad, skip or {}) for part in self._encoded(raw, bad)]
        parts = parts or [Decoded(self.empty(), np.empty(0, np.int64), np.empty(0, np.int64))]
        found = Decoded(
            pa.concat_tables([part.rows for part in parts]),
            np.concatenate([part.messages for part in parts]),
            np.concatenate([part.places for part in parts]),
            sorted(bad, key=lambda each: (each.message, each.row)),
        )
        # Restore the order, because each format was decoded separately.
        return found.take(np.lexsort((found.places, found.messages))) if len(parts) > 1 else found

    def empty(self) -> pa.Table:
        """Returns the rows of no messages."""
        table = pa.table({name: pa.nulls(0) for name in self._wanted})
        return self._encode(table, [])

    def _tables(self, messages: Sequence[Message], bad: list[BadMessage], skip: dict[int, int]) -> Iterator[Decoded]:
        """Yields the raw columns of the messages of each format, and adds the bad messages to `bad`."""
        of_format: dict[str, list[int]] = {"json": [], "example": [], "arrow": [], "": []}
        for number, message in enumerate(messages):
            of_format[_format(message.value)].append(number)
        bad += [BadMessage(number, 0, _misfit(messages[number])) for number in of_format[""]]
        readers: dict[str, Callable[[list[bytes]], _Read]] = {
            "json": self._json.read,
            "example": self._read_examples,
            "arrow": self._read_arrow,
        }
        for form, read in readers.items():
            numbers = np.array(of_format[form], np.int64)
            if not len(numbers):
                continue
            for table, of, wrong in read([messages[number].value or b"" for number in numbers]):
                bad += [BadMessage(int(numbers[at]), 0, reason) for at, reason in wrong]
                raw = Decoded(table, numbers[of], _places(of))
                if skip:
                    first = np.array([skip.get(int(number), 0) for number in raw.messages], np.int64)
                    raw = raw.take(np.flatnonzero(raw.places >= first))
                if count := len(raw.messages):
                    there = dict(zip(raw.rows.column_names, raw.rows.columns, strict=True))
                    rows = pa.table({name: there.get(name, pa.nulls(count)) for name in self._wanted})
                    yield dataclasses.replace(raw, rows=rows)

    def _encoded(self, raw: Decoded, bad: list[BadMessage]) -> Iterator[Decoded]:
        """Encodes raw columns. Yields the good rows, and adds the other rows to `bad`."""
        found: list[BadRow] = []
        try:
            rows = self._encode(raw.rows, found)
        except MemoryError:
            raise
        except Exception as error:  # Some rows have values that cannot be converted. Nothing is known about the data.
            count = len(raw.messages)
            if count == 1:
                reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                bad.append(BadMessage(int(raw.messages[0]), int(raw.places[0]), reason))
                return
            for half in np.array_split(np.arange(count), 2):
                yield from self._encoded(raw.take(half), bad)
            return
        good = np.ones(len(raw.messages), bool)
        for row in found:
            at = row.line or 0
            good[at] = False
            reason = f"column {row.column!r}: {cut(repr(row.value))} is not {row.expected}"
            bad.append(BadMessage(int(raw.messages[at]), int(raw.places[at]), reason))
        encoded = Decoded(rows, raw.messages[good], raw.places[good])
        if self._late is not None:
            names = [label.name for label in self._spec.labels]
            labels = array_of(rows["labels"], len(rows))
            label, late = (labels[:, names.index(name)] for name in self._late)
            reason = f"label {self._late[1]!r} is 1, but label {self._late[0]!r} is 0"
            for at in np.flatnonzero(late > label).tolist():
                bad.append(BadMessage(int(encoded.messages[at]), int(encoded.places[at]), reason))
            encoded = encoded.take(np.flatnonzero(late <= label))
        yield encoded

    def _encode(self, table: pa.Table, found: list[BadRow]) -> pa.Table:
        chunk = typed.as_chunk(table, self._wanted, self._name, np.arange(len(table)), found)
        return rows_of(self._encoder.encode(chunk, found, Observations(self._spec)), self._spec, self._buckets)

    def _read_examples(self, values: list[bytes]) -> _Read:
        from ctr_trainer.data.conversion import tfrecord  # Imports TensorFlow, which other formats do not need.

        if self._examples is None:
            self._examples = tfrecord.ExampleReader(self._wanted)
        return self._examples.read(np.array(values, object))

    def _read_arrow(self, values: list[bytes]) -> _Read:
        """Yields consecutive messages with the same schema as one table; see `JsonReader.read`."""
        tables: list[tuple[int, pa.Table]] = []
        wrong = []
        for number, value in enumerate(values):
            try:
                tables.append((number, _ARROW.read_all(value, self._wanted)))
            except BadArrow as error:
                wrong.append((number, str(error)))
        if wrong:
            yield pa.table({}), np.empty(0, np.int64), wrong
        for _, group in itertools.groupby(tables, key=lambda each: each[1].schema):
            of_schema = list(group)
            numbers = np.repeat([number for number, _ in of_schema], [len(table) for _, table in of_schema])
            yield pa.concat_tables([table for _, table in of_schema]), numbers, []


def rows_in(value: bytes | None) -> int:
    """Returns the number of rows of a message; 1 if it is invalid."""
    try:
        return len(_ARROW.read_all(value or b"", ())) or 1 if _format(value) == "arrow" else 1
    except BadArrow:
        return 1


def _places(numbers: np.ndarray) -> np.ndarray:
    """Returns the index of each row in its message. `numbers` has the index of each row's message, ascending."""
    _, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    return np.arange(len(numbers)) - np.repeat(first, counts)


def _format(value: bytes | None) -> str:
    """Returns `json`, `arrow` or `example`; "" for other messages and for those that are too large."""
    if value and value[0] == ord("{"):  # Fast path for short messages, which are numerous and nearly always JSON.
        return "json"
    if value and len(value) > _MOST_BYTES:
        return ""
    start = (value or b"").lstrip()[:6]
    # An Example with 123 bytes of features also begins with a line end and a brace. It contains 0x12, the tag of a
    # value, which JSON does not allow.
    if value and start.startswith(b"{") and b"\x12" not in value:
        return "json"
    if start.startswith((b"\xff\xff\xff\xff", b"ARROW1")):
        return "arrow"
    return "example" if value and value.startswith(b"\n") else ""


def _misfit(message: Message) -> str:
    if len(message.value or b"") > _MOST_BYTES:
        return f"has {len(message.value or b'')} bytes: expected at most {_MOST_BYTES}"
    return f"is not {_FORMATS}: {text_of(message.value) if message.value else 'it is empty'}"
