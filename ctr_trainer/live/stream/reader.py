"""Reads the batches of a stream, as `data.reader.BatchReader` does for files."""

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from ctr_trainer.data.batch import Batch, batches
from ctr_trainer.data.read_ahead import read_ahead
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.features.columns import FITTED
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.live.stream.coordinator import Coordinator
from ctr_trainer.live.stream.messages import MessageDecoder
from ctr_trainer.live.stream.network import RemoteCoordinator
from ctr_trainer.live.stream.plan import Cut, Report, StreamPosition
from ctr_trainer.live.stream.source import Message, Range, StreamSource, reading, uncollected
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.messages.log_lines import Seldom

_log = logging.getLogger(__name__)
_SHOWN = 2000  # Number of bytes of the message in a dead letter.
_AHEAD_SECONDS = 600.0
_MOST_BYTES = 512 << 20  # A worker leaves the rest of a window for later after this many bytes of messages.
_READY = 2  # Number of windows that are decoded ahead of the training.


class StreamReader:
    """The batches of one worker from a stream. Each record goes to exactly one worker.

    Every worker makes the same number of batches with exactly `batch_size` rows, some of which may be padding with
    weight 0. While no records arrive, it completes a step with padding every 2 s, or every 10 s if the stream has an
    end that is known.

    Args:
      statistics: statistics of the model's training data; {} if it was trained on streams only.
      late: name of a label, and of the label that may be 1 only if the first one is; None without such labels.

    Attributes:
      steps, epochs: None, because the end is not known in advance.
      coordinator, stream_state: the `Coordinator` and the function `Figures.state` on rank 0; None on other ranks.
      is_live: True, because a record should not have to wait for many later records.
    """

    steps: int | None = None
    epochs: int | None = None
    is_live = True

    def __init__(
        self,
        open_source: Callable[[], StreamSource],
        spec: FeatureSpec,
        statistics: dict[str, dict],
        batch_size: int,
        coordination: Coordinator | RemoteCoordinator,
        late: tuple[str, str] | None = None,
    ) -> None:
        self._late, self._ahead, self._waiting = late, Seldom(_log), Seldom(_log)
        self.spec, self.statistics, self.batch_size = spec, statistics, batch_size
        self._open_source, self._coordination = open_source, coordination
        self.coordinator = coordination if isinstance(coordination, Coordinator) else None
        self.stream_state = self.coordinator.figures.state if self.coordinator else None
        self._closing = threading.Event()
        self._error: BaseException | None = None  # The error of the reading thread.

    def position_after(self, steps: int) -> dict[str, Any] | None:
        """Returns the position after `steps` batches per worker, as a dict for JSON, on rank 0; None on other ranks."""
        position = self.coordinator.position_after(steps) if self.coordinator else None
        return None if position is None else position.to_dict()

    def committed(self, position: dict[str, Any]) -> None:
        """Commits the position of a complete checkpoint to the brokers."""
        found = StreamPosition.from_dict(position)
        if self.coordinator and found:
            self.coordinator.commit(found)

    def status_lines(self, new_keys: NewKeys) -> list[Callable[[], str]]:
        """Returns functions f() -> log line, on rank 0, whose metrics then have `new_keys`; [] on other ranks."""
        if self.coordinator is None:
            return []
        figures = self.coordinator.figures
        figures.new_keys = new_keys
        return [figures.status_line, lambda: f"[RunStatus]: {new_keys.line()}"]

    def __iter__(self) -> Iterator[Batch]:
        source = self._open_source()
        decoder = MessageDecoder(self.spec, self.statistics, source.name, self._late)
        with read_ahead(self._windows(source, decoder), _READY, name=f"reading {source.name}") as windows:
            try:
                for number in itertools.count():
                    directive = self._coordination.directive(number)
                    if self._error is not None:
                        raise self._error
                    if directive.kind == "end":
                        return
                    rows = next(windows) if directive.kind == "window" else decoder.empty()
                    if directive.steps:
                        yield from batches(iter([rows]), directive.steps, self.batch_size)
            finally:
                self._closing.set()
                self._coordination.close()

    def _windows(self, source: StreamSource, decoder: MessageDecoder) -> Iterator[pa.Table]:
        """Reports this worker's rows of each window, then yields them."""
        try:
            with contextlib.closing(source):
                for number in itertools.count():
                    share = self._coordination.share(number)
                    found = None if share is None else self._read(source, share)
                    if share is None or found is None:
                        return
                    with uncollected():
                        rows, report = self._decoded(source, decoder, share, *found)
                    self._coordination.report(number, report)
                    yield rows
        except Exception as error:  # The window will not be released, so no step waits for its rows.
            self._error = error
            self._coordination.fail(error)

    def _read(self, source: StreamSource, share: list[Range]) -> tuple[list[tuple[int, Message]], list[Range]] | None:
        """Returns (index of the range, message) pairs of a share, and what it leaves; None if the reader is closed."""
        found: list[tuple[int, Message]] = []
        size = 0
        for number, place in enumerate(share):
            for messages in reading(source, place, self._waiting):
                if self._closing.is_set():
                    return None
                found += [(number, message) for message in messages]
                size += sum(len(message.value or b"") for message in messages)
                if size > _MOST_BYTES:  # The plan knows no sizes. A source does not give records of a list again.
                    left = [place._replace(start=messages[-1].offset + 1, row=0), *share[number + 1 :]]
                    return found, [each for each in left if each.start < each.stop]
        return found, []

    def _decoded(
        self,
        source: StreamSource,
        decoder: MessageDecoder,
        share: list[Range],
        read: list[tuple[int, Message]],
        rest: list[Range],
    ) -> tuple[pa.Table, Report]:
        skip = {}
        for place, (number, message) in enumerate(read):
            if share[number].row and message.offset == share[number].start:
                skip[place] = share[number].row
        decoded = decoder.decode([message for _, message in read], skip)
        rows, bad = len(decoded.rows), decoded.bad
        cuts: list[Cut] = []
        for first in range(0, rows, self.batch_size):
            at, row = int(decoded.messages[first]), int(decoded.places[first])
            number, message = read[at]
            before = sum((each.message, each.row) < (at, row) for each in bad) if bad else 0
            cuts.append((number, message.offset, row, before))
        if cuts:  # After 0 batches, everything remains, including bad rows before the first row.
            cuts[0] = (0, share[0].start, share[0].row, 0)
        letters = [
            {
                "stream": source.name,
                "partition": (message := read[each.message][1]).partition,
                "offset": source.text(message.offset),
                "row": each.row,
                "reason": each.reason,
                "value": (message.value or b"")[:_SHOWN].decode(errors="replace"),
            }
            for each in bad
        ]
        seconds = self._event_seconds(source, [message for _, message in read])
        marks = {str(partition): message.mark for partition, message in {m.partition: m for _, m in read}.items()}
        return decoded.rows, Report(rows, cuts, letters, seconds, source.watermarks(), marks, len(read), rest)

    def _event_seconds(self, source: StreamSource, messages: list[Message]) -> float:
        """Returns the newest event time of messages that is not too far ahead of the clock; 0 without one."""
        now = time.time()
        for message in messages:
            if message.seconds > now + _AHEAD_SECONDS:
                self._ahead.warning(
                    "%s, partition %d, offset %s: its time is %.0f s ahead of the clock of this host, above %.0f s. "
                    "The record is trained, but its time is ignored. Correct the clock of the program that writes it",
                    *(source.name, message.partition, source.text(message.offset), message.seconds - now),
                    _AHEAD_SECONDS,
                )
        return max((message.seconds for message in messages if message.seconds <= now + _AHEAD_SECONDS), default=0.0)


def refuse_unfitted(spec: FeatureSpec, statistics: dict[str, dict]) -> None:
    """Raises UserError if a feature needs statistics of the data, which a stream does not have."""
    fitted = [f.name for f in spec.dense if f.transform in FITTED]
    fitted += [f.name for f in spec.bucketised if f.quantiles]
    missing = [name for name in fitted if name not in statistics]
    if missing:
        raise UserError(
            f"feature {missing[0]!r} needs statistics of the whole data ({', '.join(FITTED)}, quantiles), which a "
            "stream does not have: train the model on files first, or use log1p or `buckets`"
        )
