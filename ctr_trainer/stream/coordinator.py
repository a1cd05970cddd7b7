"""Rank 0 plans what all workers read, so that they make the same number of steps and no step waits for a partition.

    rank 0: plans a window  ->  each worker reads and decodes its share, and reports  ->  rank 0 releases the window

Workers train a window only once all of them have read it. While none is released, rank 0 gives out single batches
without examples, so that signals, checkpoints and publications are not held up by a quiet stream or a lost broker.
"""

import collections
import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from ctr_trainer.settings.stream_config import StreamConfig, seconds_of
from ctr_trainer.stream.plan import Report, StreamPosition, Window, next_window, resumed, share_out
from ctr_trainer.stream.source import DeadLetters, Range, StreamSource, Unavailable
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_BATCHES = 8  # Of each worker, the most in a window.
_AHEAD = 3  # Windows that are planned and not begun by the training.
# Time without a window after which workers make a batch without examples; a replay to a known end should need none.
_REST_SECONDS, _REPLAY_REST_SECONDS = 2.0, 30.0
_POLL_SECONDS, _RETRY_SECONDS, _WARN_SECONDS, _CHECK_SECONDS = 0.05, 0.5, 15.0, 10.0
_MANY = 1 << 60
_KEPT_BATCHES = 1000  # Positions of so many batches before the last one asked for can still be asked for.


@dataclasses.dataclass(frozen=True)
class Directive:
    """What all workers do next.

    Attributes:
      kind: `window`: train a window; `rest`: make one batch without examples; `end`: stop.
      window: its number.
      steps: number of batches.
    """

    kind: str
    window: int = 0
    steps: int = 0


class Coordination(Protocol):
    """What a worker asks of rank 0, which is itself or another process."""

    def share(self, window: int) -> list[Range] | None:
        """Waits for a window's plan, and returns this worker's share; None at the end."""

    def report(self, window: int, report: Report) -> None:
        """Says what this worker has read of a window."""

    def directive(self, number: int) -> Directive:
        """Waits for the directive of that number, from 0 on, and returns it."""

    def fail(self, error: BaseException) -> None:
        """Says that this worker cannot read."""

    def close(self) -> None:
        """Ends all waiting."""


class Coordinator:
    """Plans windows in a thread of rank 0; the `Coordination` of its own worker.

    Args:
      open_source: f() -> `StreamSource`.
      config: `StreamConfig`.
      position: `StreamPosition` of the checkpoint; None without one.
      has_other_position: whether the checkpoint has a position in an input of another kind.
      workers, batch_size: number of workers, and rows of a batch of each.
      dead_letters: where bad rows go.

    Attributes:
      figures: `Figures` of the reading.
      closing: functions that `close` calls.
    """

    def __init__(
        self,
        open_source: Callable[[], StreamSource],
        config: StreamConfig,
        position: StreamPosition | None,
        has_other_position: bool,
        workers: int,
        batch_size: int,
        dead_letters: DeadLetters,
    ) -> None:
        self._open_source, self._config, self._workers, self._batch_size = open_source, config, workers, batch_size
        self._position, self._has_other, self._dead_letters = position, has_other_position, dead_letters
        self._rest_seconds = _REPLAY_REST_SECONDS if config.until else _REST_SECONDS
        self._changed = threading.Condition()  # Guards all attributes below.
        self._windows: dict[int, Window] = {}
        self._planned = self._released = self._begun = 0  # Numbers of windows.
        self._directives: collections.deque[tuple[Directive, int]] = collections.deque()  # With the batches before it.
        self._first = 0  # Number of the first directive that is kept.
        self._batches = 0  # Of all directives so far.
        self._start: StreamPosition | None = None
        self._next: dict[int, int] = {}
        self._hints: dict[int, int] = {}
        self._rates: dict[int, tuple[int, int]] = {}  # Messages and rows up to a window, by its number.
        self._bad_rows = position.bad_rows if position else 0
        self._error: BaseException | None = None
        self._is_closed = self._is_over = False
        self.figures = Figures()
        self.closing: list[Callable[[], None]] = []
        self._source: StreamSource | None = None
        self._thread = threading.Thread(target=self._run, name="stream coordinator", daemon=True)
        self._thread.start()

    def share(self, window: int, rank: int = 0) -> list[Range] | None:
        with self._changed:
            self._wait_for(lambda: window < self._planned or self._is_over)
            return self._windows[window].shares[rank] if window < self._planned and not self._is_closed else None

    def report(self, window: int, report: Report, rank: int = 0) -> None:
        with self._changed:
            found = self._windows[window]
            found.reports[rank] = report
            for partition, offset in report.watermarks.items():
                self._hints[partition] = max(self._hints.get(partition, 0), offset)
            while self._error is None and self._is_read(self._released):
                self._release(self._released)
            self._changed.notify_all()

    def directive(self, number: int, rank: int = 0) -> Directive:
        with self._changed:
            if rank == 0:
                is_there = self._wait_for(lambda: self._has(number), self._rest_seconds)
                if not is_there:
                    self._give(Directive("rest", steps=1))
            else:
                self._wait_for(lambda: self._has(number))
            if not self._has(number):
                return Directive("end")
            directive = self._directives[number - self._first][0]
            if rank == 0 and directive.kind == "window":
                self._begun = directive.window + 1
                self._changed.notify_all()
            return directive

    def position_after(self, batches: int) -> StreamPosition | None:
        """Returns the position when each worker has taken so many batches; None before the stream was opened."""
        with self._changed:
            position = self._start
            if position is None:
                return self._position
            for directive, before in self._directives:
                if before >= batches and directive.steps:
                    break
                if directive.kind == "window":
                    taken = min(batches - before, directive.steps)
                    position = self._after(position, self._windows[directive.window], taken)
            kept = [pair for pair in self._directives if pair[1] + pair[0].steps >= batches - _KEPT_BATCHES]
            self._forget(len(self._directives) - len(kept))
            return position

    def commit(self, position: StreamPosition) -> None:
        """Tells the brokers how far the model of a checkpoint is trained."""
        try:
            if self._source is not None:
                with contextlib.closing(self._open_source()) as source:
                    source.commit(position.trained())
        except Unavailable as error:
            _log.warning("positions are in the checkpoint, and not at the broker: %s", error)

    def fail(self, error: BaseException) -> None:
        """Ends the reading of all workers with an error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = self._is_over = True
            self._changed.notify_all()
        self._thread.join(30)
        self._dead_letters.close()
        for close in self.closing:
            close()

    def _has(self, number: int) -> bool:
        return number < self._first + len(self._directives)

    def _wait_for(self, is_so: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits, and returns whether it is so; also ends when this is closed. Raises the error of the thread."""
        found = self._changed.wait_for(lambda: is_so() or self._is_closed or self._error is not None, seconds)
        if self._error is not None:
            raise self._error
        return found

    def _give(self, directive: Directive) -> None:
        self._directives.append((directive, self._batches))
        self._batches += directive.steps
        self._changed.notify_all()

    def _is_read(self, number: int) -> bool:
        return number < self._planned and len(self._windows[number].reports) == self._workers

    def _release(self, number: int) -> None:
        """Has all workers train a window that they all have read."""
        window = self._windows[number]
        bad = [letter for rank in range(self._workers) for letter in window.reports[rank].bad]
        if bad:
            self._dead_letters.write(bad)
        for letter in bad:
            self._bad_rows += 1
            place = f"{letter['stream']}, partition {letter['partition']}, offset {letter['offset']}"
            text = f"{place}, row {letter['row']}: {letter['reason']}"
            if self._bad_rows > self._config.max_bad_rows:
                self._error = UserError(
                    f"{text}. It is bad row {self._bad_rows}, and max_bad_rows={self._config.max_bad_rows} may be left "
                    "out: mend what writes the stream, or give a higher number; the same command resumes"
                )
                return
            _log.warning("bad row %d of at most %d, left out: %s", self._bad_rows, self._config.max_bad_rows, text)
        messages, rows = self._rates.get(number - 1, (0, 0))
        self._rates[number] = messages + self.figures.planned.pop(number, 0), rows + window.rows + len(bad)
        self._rates.pop(number - 2 * _AHEAD, None)
        self._released = number + 1
        steps = window.steps(self._batch_size)
        self.figures.add(window)
        self._give(Directive("window", number, steps))

    def _after(self, position: StreamPosition, window: Window, batches: int) -> StreamPosition:
        is_whole = batches >= window.steps(self._batch_size)
        left = () if is_whole else tuple(window.left_after(batches))
        most = window.rows if is_whole else batches * self._batch_size
        rows = sum(min(report.rows, most) for report in window.reports.values())
        return dataclasses.replace(
            position,
            next=window.next,
            left=left,
            bad_rows=position.bad_rows + window.bad_before(batches),
            records=position.records + rows,
        )

    def _forget(self, count: int) -> None:
        """Drops the first directives, which are trained; the start moves behind them."""
        for _ in range(count):
            directive, _ = self._directives.popleft()
            self._first += 1
            if directive.kind == "window":
                assert self._start is not None
                window = self._windows.pop(directive.window)
                self._start = self._after(self._start, window, directive.steps)

    def _run(self) -> None:
        try:
            with contextlib.closing(self._open_source()) as source:
                self._source = source
                self._plan_all(source)
        except _Closed:
            pass
        except BaseException as error:  # Raised again in the workers.
            self.fail(error)

    def _plan_all(self, source: StreamSource) -> None:
        partitions = self._patiently(source.partitions)
        self._begin(source, partitions)
        stops = self._stops(source, partitions)
        waiting_since, checked = None, time.monotonic()
        while True:
            with self._changed:
                self._wait_for(lambda: self._planned < self._begun + _AHEAD and self._planned < self._released + 2)
                if self._is_closed:
                    return
                hints = dict(self._hints)
            now = time.monotonic()
            if now - checked > _CHECK_SECONDS:
                checked = now
                partitions = self._look_again(source, partitions)
            if stops is None and self._config.until and time.time() >= (seconds_of(self._config.until) or 0.0):
                stops = self._stops(source, partitions)
            ends = self._patiently(functools.partial(source.latest, partitions))
            ends = {p: max(end, hints.get(p, 0), self._next[p]) for p, end in ends.items()}
            if stops is not None:  # There are records up to there, whatever the brokers say.
                ends = {p: max(stops.get(p, 0), self._next[p]) for p in partitions}
            step = max(1, int(self._workers * self._batch_size / self._rows_per_message()))
            counts = self._patiently(functools.partial(self._count, source, ends, _BATCHES * step))
            self.figures.lag_records = sum(counts.values())
            there = min(sum(counts.values()), _BATCHES * step)
            if there and waiting_since is None:
                waiting_since = now
            is_due = there and waiting_since is not None and now - waiting_since >= self._config.wait_secs
            is_last = stops is not None
            if there >= step or (there and (is_due or is_last)):
                total = there // step * step or there
                plan = self._patiently(
                    functools.partial(next_window, source, self._next, ends, counts, total, self._workers)
                )
                self._add(plan, total)
                waiting_since = None
            elif is_last and not there:
                with self._changed:
                    self._wait_for(lambda: self._released == self._planned)
                    self._is_over = True
                    self._give(Directive("end"))
                return
            else:
                self._sleep(_POLL_SECONDS)

    def _begin(self, source: StreamSource, partitions: list[int]) -> None:
        """Finds out where to begin; plans what the checkpoint has left of its last window."""
        start = self._config.start
        position = resumed(self._position, source, start, self._has_other)
        first = self._patiently(lambda: source.earliest(partitions))
        self._hints = self._patiently(lambda: source.latest(partitions, exact=True))
        if position is not None:
            places = {p: offset for p, offset in position.trained().items() if p in partitions}
            self._refuse_lost(source, places)
            gone = sorted(set(position.next) - set(partitions))
            if gone:
                raise UserError(
                    f"{source.name} has no partition {gone[0]} any more, and the checkpoint has a place in it"
                )
            next_ = {p: position.next.get(p, first[p]) for p in partitions}
            _log.info("resuming %s: %s", source.name, _places(source, next_))
        else:
            if start == "latest":
                next_ = self._patiently(lambda: source.latest(partitions, exact=True))
            elif (seconds := seconds_of(start)) is not None:
                found = self._patiently(lambda: source.at_time(partitions, seconds))
                next_ = {p: max(found[p], first[p]) for p in partitions}
            else:
                next_ = first
            _log.info("beginning %s: %s", source.name, _places(source, next_))
            position = StreamPosition(source.name, start, next_)
        left = position.left
        with self._changed:
            position = dataclasses.replace(position, since=start)
            self._start = position
            self._next = next_
            self._changed.notify_all()
        if left:
            counts = [
                self._patiently(functools.partial(source.count, each.partition, each.start, each.stop, _MANY))
                for each in left
            ]
            pieces = list(zip(left, counts, strict=True))
            shares = self._patiently(lambda: share_out(source, pieces, self._workers))
            self._add(Window(shares, dict(next_)), sum(count for _, count in pieces))

    def _add(self, window: Window, messages: int) -> None:
        with self._changed:
            self._windows[self._planned] = window
            self.figures.planned[self._planned] = messages
            self._next = dict(window.next)
            self._planned += 1
            self._changed.notify_all()

    def _count(self, source: StreamSource, ends: dict[int, int], most: int) -> dict[int, int]:
        """Returns by partition the number of records that are not planned, up to `most`."""
        return {p: source.count(p, self._next[p], end, most) for p, end in ends.items()}

    def _stops(self, source: StreamSource, partitions: list[int]) -> dict[int, int] | None:
        """Returns the offset to stop before, by partition; None if there is none, or it is not known yet."""
        until = self._config.until
        if until == "latest":
            return self._patiently(lambda: source.latest(partitions, exact=True))
        seconds = seconds_of(until) if until else None
        if seconds is None or time.time() < seconds:
            return None
        return self._patiently(lambda: source.at_time(partitions, seconds))

    def _look_again(self, source: StreamSource, partitions: list[int]) -> list[int]:
        """Raises UserError if records were removed that are not read yet; returns the partitions that there are now."""
        self._refuse_lost(source, dict(self._next))
        found = self._patiently(source.partitions)
        new = [p for p in found if p not in self._next]
        if new:
            first = self._patiently(lambda: source.earliest(new))
            _log.info("%s has new partitions: %s", source.name, _places(source, first))
            with self._changed:
                self._next = self._next | first
        return [*partitions, *new]

    def _refuse_lost(self, source: StreamSource, places: dict[int, int]) -> None:
        lost = self._patiently(lambda: source.lost(places))
        if lost:
            raise UserError("\n".join(lost.values()))

    def _rows_per_message(self) -> float:
        """Returns the rows of a message, as the windows before the last one had them."""
        messages, rows = self._rates.get(self._planned - 2, (0, 0))
        return max(rows / messages, 1.0) if messages else 1.0

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        """Asks the brokers until they answer."""
        since, warned = time.monotonic(), 0.0
        while True:
            asked = time.monotonic()
            try:
                return ask()
            except Unavailable as error:
                now = time.monotonic()
                if now - warned > _WARN_SECONDS:
                    warned = now
                    _log.warning("waiting: %s; asking again, %.0f s by now", error, now - since)
                self.figures.waited(now - asked + _RETRY_SECONDS)
            self._sleep(_RETRY_SECONDS)

    def _sleep(self, seconds: float) -> None:
        with self._changed:
            if self._changed.wait_for(lambda: self._is_closed, seconds):
                raise _Closed


class _Closed(Exception):
    """The training has ended while the thread waited."""


class Figures:
    """Counts of a stream's reading, for the log and for Prometheus.

    Attributes:
      planned: number of messages by window, until it is released.
      lag_records: number of records that were there and not planned when rank 0 looked last.
      records, bad_rows: examples that were read, and rows that could not be.
      event_seconds: the newest event time among them; 0 before the first.
      waiting_seconds: time in which the brokers did not answer.
    """

    def __init__(self) -> None:
        self.planned: dict[int, int] = {}
        self.lag_records = self.records = self.bad_rows = 0
        self.event_seconds = self.waiting_seconds = 0.0
        self._since, self._records_then = time.monotonic(), 0

    def add(self, window: Window) -> None:
        """Adds a window that all workers have read."""
        self.records += window.rows
        self.bad_rows += window.bad_rows
        self.event_seconds = max(self.event_seconds, *(report.seconds for report in window.reports.values()))

    def waited(self, seconds: float) -> None:
        """Adds a time in which the brokers did not answer."""
        self.waiting_seconds += seconds

    @property
    def lag_seconds(self) -> float:
        """Age of the newest event that was read; 0 if none is left to read."""
        return max(time.time() - self.event_seconds, 0.0) if self.lag_records and self.event_seconds else 0.0

    def event_time(self) -> str:
        """Returns the newest event time that was read, as text; "none" before the first record."""
        if not self.event_seconds:
            return "none"
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.event_seconds))

    def status_line(self) -> str:
        """Returns the `[RunStatus]` line of the time since the previous one."""
        now = time.monotonic()
        rate = (self.records - self._records_then) / max(now - self._since, 1e-9)
        self._since, self._records_then = now, self.records
        return (
            f"[RunStatus]: Stream statistics => lag: {self.lag_records} records, {self.lag_seconds:.1f} s  "
            f"records/s: {rate:.0f}  event time: {self.event_time()}  bad rows: {self.bad_rows}  "
            f"waited for brokers: {self.waiting_seconds:.1f} s"
        )


def _places(source: StreamSource, offsets: dict[int, int]) -> str:
    shown = [f"partition {p} from {source.text(offset)} on" for p, offset in sorted(offsets.items())[:4]]
    return ", ".join(shown) + (f", and {len(offsets) - 4} more" if len(offsets) > 4 else "")
