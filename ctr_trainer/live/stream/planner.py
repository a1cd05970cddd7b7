"""Plans the next records of a stream: gets the available offsets from the brokers, and divides records into windows."""

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ctr_trainer.live.stream.figures import Figures
from ctr_trainer.live.stream.messages import rows_in
from ctr_trainer.live.stream.plan import StreamPosition, Window, evenly, share_out
from ctr_trainer.live.stream.source import Message, Range, StreamSource, Unavailable, gone_text, other_text, reading
from ctr_trainer.settings.training_configs import StreamConfig, seconds_of
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.messages.log_lines import Seldom

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_BATCHES = 8  # Maximum number of batches per worker in a window.
_RETRY_SECONDS, _WARN_SECONDS, _CHECK_SECONDS = 0.5, 15.0, 10.0
_MANY = 1 << 60


class Planner:
    """Plans one window after another. It is not thread-safe.

    Args:
      figures: receives the lag and the time spent waiting for brokers.
      sleep: f(seconds), which raises an error if the training has ended.
      open_source: opens another connection, to read single records.

    `is_over`: whether the stream is planned up to `config.until`.
    """

    def __init__(
        self,
        source: StreamSource,
        config: StreamConfig,
        workers: int,
        batch_size: int,
        figures: Figures,
        sleep: Callable[[float], None],
        open_source: Callable[[], StreamSource],
    ) -> None:
        self._source, self._config, self._figures, self._sleep = source, config, figures, sleep
        self._open_source, self._identity, self._first_rows = open_source, "", 0
        self._workers, self._batch_size = workers, batch_size
        self._partitions: list[int] = []
        self._next: dict[int, int] = {}
        self._at_start: dict[int, int] = {}
        self._stops: dict[int, int] | None = None
        self._waiting_since: float | None = None
        self._checked = time.monotonic()
        self.is_over = False

    def begin(self, position: StreamPosition | None) -> tuple[StreamPosition, Window | None]:
        """Determines where to begin. Returns the position, and a window of the untrained records before it, or None.

        Raises UserError: the checkpoint has a position in other data, records were removed before they were trained, or
        a partition no longer exists.
        """
        source, start = self._source, self._config.start
        partitions = self._partitions = self._patiently(source.partitions)
        if position is not None and (position.stream != source.name or start not in ("checkpoint", position.since)):
            if start == "checkpoint":
                raise UserError(
                    f"the checkpoint has a position in {position.stream}, but the training data is {source.name}: set "
                    "stream_from to earliest, latest or a time to begin there"
                )
            position = None
        first = self._patiently(lambda: source.earliest(partitions))
        self._at_start = self._patiently(lambda: source.latest(partitions, exact=True))
        self._identity = position.identity if position else ""
        is_recognized = self._refuse_other()
        if position is not None:
            for gone in sorted(position.next.keys() - set(partitions)):
                raise UserError(gone_text(source, gone))
            for partition, mark in position.marks.items() if not is_recognized else ():
                self._refuse_unlike(int(partition), mark, first)
            for places in (position.trained(), position.next):
                self._refuse_lost(places)
            self._next = {p: position.next.get(p, first[p]) for p in partitions}
            _log.info("resuming %s: %s", source.name, _places(source, self._next))
        else:
            found = self._offsets_at(start)
            self._next = {p: max(found[p], first[p]) for p in partitions} if found is not None else first
            _log.info("beginning %s: %s", source.name, _places(source, self._next))
            position = StreamPosition(source.name, start, self._next)
        self._stops = self._stop_offsets()
        left = self.again(position.left) if position.left else None
        return dataclasses.replace(position, since=start, identity=self._identity), left

    def next(self, hints: dict[int, int], rows_per_message: float) -> Window | None:
        """Returns the next window; None if too few records are available, or if all are planned (`is_over`).

        Args:
          hints: for each partition, an offset up to which a worker has seen records; the brokers may name a lower one.
          rows_per_message: the mean of a recent window; 0 if it is unknown.

        Raises UserError: records were removed before they were read.
        """
        now = time.monotonic()
        if now - self._checked > _CHECK_SECONDS:
            self._checked = now
            self._look_for_partitions()
        if self._stops is None:
            self._stops = self._stop_offsets()
        ends = self._ends(hints)
        step = max(1, int(self._workers * self._batch_size / (rows_per_message or self._rows_of_first(ends))))
        counts = self._patiently(functools.partial(self._counts, ends, _BATCHES * step))
        most = max(counts.values(), default=0) if sum(counts.values()) >= _BATCHES * step else -1
        full = [p for p, count in counts.items() if count == most]
        more = self._patiently(lambda: {p: self._source.backlog(p, self._next[p], ends[p]) for p in full})
        self._figures.lag_records = sum(max(count, more.get(p, 0)) for p, count in counts.items())
        there = min(sum(counts.values()), _BATCHES * step)
        self._waiting_since = (self._waiting_since or now) if there else None  # Records may be removed meanwhile.
        has_waited = self.until_next(1.0) == 0.0
        is_last = self._stops is not None
        window = None
        if there >= step or (there and (has_waited or is_last)):
            total = there // step * step or there
            window = self._patiently(functools.partial(self._window, ends, counts, total))
        self.is_over = is_last and not there
        if (window or self.is_over) and not self._source.has_gaps:  # Otherwise, reading a removed offset is an error.
            self._refuse_lost({p: at for p, at in self._next.items() if at < ends[p]})
        if window:
            self._next, self._waiting_since = dict(window.next), None
        return window

    def again(self, left: Sequence[Range], messages: int | None = None) -> Window:
        """Returns a window of ranges that were planned before, with this number of records if it is known."""
        counts = [
            self._patiently(functools.partial(self._source.count, each.partition, each.start, each.stop, _MANY))
            for each in left
        ]
        pieces = list(zip(left, counts, strict=True))
        shares = self._patiently(lambda: share_out(self._source, pieces, self._workers))
        return Window(shares, dict(self._next), sum(counts) if messages is None else messages, again=tuple(left))

    def until_next(self, most: float) -> float:
        """Returns the seconds until the records that are there may become a window, at most `most`."""
        if self._waiting_since is None:
            return most
        return min(most, max(self._waiting_since + self._config.wait_secs - time.monotonic(), 0.0))

    def _window(self, ends: dict[int, int], counts: dict[int, int], total: int) -> Window:
        """Plans the next `total` records, evenly over the partitions, and divides them in the order of partitions."""
        # So if all are equally busy, and a multiple of the workers, each worker keeps its partitions.
        after, pieces = dict(self._next), []
        for partition, count in evenly(counts, total).items():
            if count:
                start = self._next[partition]
                after[partition] = self._source.after(partition, start, ends[partition], count)
                pieces.append((Range(partition, start, after[partition]), count))
        return Window(share_out(self._source, pieces, self._workers), after, total)

    def _rows_of_first(self, ends: dict[int, int]) -> int:
        """Returns the number of rows of the first message, without which the first window could have millions."""
        counts = {} if self._first_rows else self._patiently(lambda: self._counts(ends, 1))
        partition = next((p for p, count in counts.items() if count), None)
        if partition is not None:
            record = self._first_record(Range(partition, self._next[partition], ends[partition]))
            self._first_rows = rows_in(record.value) if record else 0
        return self._first_rows or 1

    def _first_record(self, place: Range) -> Message | None:
        with contextlib.closing(self._open_source()) as source:
            for messages in reading(source, place, Seldom(_log)):
                if messages:
                    return messages[0]
                self._sleep(0.0)
        return None

    def _offsets_at(self, where: str) -> dict[int, int] | None:
        """Returns, for each partition, the offset of `latest` or of a time; None for anything else."""
        if where == "latest":
            return self._patiently(lambda: self._source.latest(self._partitions, exact=True))
        seconds = seconds_of(where)
        return None if seconds is None else self._patiently(lambda: self._source.at_time(self._partitions, seconds))

    def _ends(self, hints: dict[int, int]) -> dict[int, int]:
        """Returns, for each partition, the offset up to which records are available."""
        if self._stops is not None:  # Records exist up to these offsets, even if the brokers report lower ends.
            return {p: max(self._stops.get(p, 0), self._next[p]) for p in self._partitions}
        latest = self._patiently(functools.partial(self._source.latest, self._partitions))
        return {p: max(end, hints.get(p, 0), self._at_start.get(p, 0), self._next[p]) for p, end in latest.items()}

    def _counts(self, ends: dict[int, int], most: int) -> dict[int, int]:
        """Returns numbers of records by partition that are not planned yet: together `most` or more, or all."""
        counts, longer = dict.fromkeys(ends, 0), [*ends]
        while longer and (left := most - sum(counts.values())) > 0:
            share = -(-left // len(longer))  # Of Redis, all entries that are counted are downloaded.
            wanted = {p: counts[p] + share for p in longer}
            counts |= {p: self._source.count(p, self._next[p], ends[p], count) for p, count in wanted.items()}
            longer = [p for p in longer if counts[p] == wanted[p]]
        return counts

    def _stop_offsets(self) -> dict[int, int] | None:
        """Returns, for each partition, the offset to stop before; None if there is no end, or if it is unknown yet."""
        until = self._config.until
        return None if time.time() < (seconds_of(until) or 0.0) else self._offsets_at(until)

    def _look_for_partitions(self) -> None:
        """Adds new partitions; raises UserError if records, or the stream, were removed before they were read."""
        self._refuse_other()
        found = self._patiently(self._source.partitions)  # It says best if the stream is gone.
        self._refuse_lost(dict(self._next))
        new = [p for p in found if p not in self._next]
        if new:
            first = self._patiently(lambda: self._source.earliest(new))
            _log.info("%s has new partitions: %s", self._source.name, _places(self._source, first))
            self._next = self._next | first
            self._partitions = [*self._partitions, *new]

    def _refuse_other(self) -> bool:
        """Refuses a stream with another ID. Returns whether it has the ID of the checkpoint."""
        found = self._patiently(self._source.identity)
        known, self._identity = self._identity, self._identity or found
        if known and found and known != found:
            raise UserError(other_text(self._source, f"its ID is {found}, and {known} was trained"))
        return known == found != ""

    def _refuse_unlike(self, partition: int, mark: list[int], first: dict[int, int]) -> None:
        """Refuses a stream that has another record in the place of a record that was read."""
        offset = mark[0]
        if partition in first and first[partition] <= offset < self._at_start[partition]:
            record = self._first_record(Range(partition, offset, offset + 1))
            if record is not None and record.mark != mark:
                place = f"partition {partition}, offset {self._source.text(offset)}"
                raise UserError(other_text(self._source, f"{place} is not the record that the training has read there"))

    def _refuse_lost(self, places: dict[int, int]) -> None:
        lost = self._patiently(lambda: self._source.lost(places))
        if lost:
            raise UserError("\n".join(lost.values()))

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        """Repeats a request until the brokers answer."""
        since, warned = time.monotonic(), 0.0
        while True:
            asked = time.monotonic()
            try:
                return ask()
            except Unavailable as error:
                now = time.monotonic()
                if now - warned > _WARN_SECONDS:
                    warned = now
                    _log.warning("waiting: %s; retrying, %.0f s so far", error, now - since)
                self._figures.waiting_seconds += now - asked + _RETRY_SECONDS
            self._sleep(_RETRY_SECONDS)


def _places(source: StreamSource, offsets: dict[int, int]) -> str:
    shown = [f"partition {p} from {source.text(offset)} on" for p, offset in sorted(offsets.items())[:4]]
    return ", ".join(shown) + (f", and {len(offsets) - 4} more" if len(offsets) > 4 else "")
