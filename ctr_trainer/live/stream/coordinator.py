"""Rank 0 plans the reads of all workers, so that they make the same number of steps and no step waits for a partition.

    rank 0: plans a window  ->  each worker reads and decodes its share, and reports  ->  rank 0 releases the window

Workers train on a window only after all of them have read it. While no window is released, rank 0 completes steps with
batches of padding, so that a quiet stream or a lost broker does not delay signals, checkpoints and publications.
"""

import collections
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable

from ctr_trainer.live.stream.figures import Figures
from ctr_trainer.live.stream.plan import Directive, Report, StreamPosition, Window
from ctr_trainer.live.stream.planner import Planner
from ctr_trainer.live.stream.source import DeadLetters, Range, StreamSource
from ctr_trainer.settings.training_configs import StreamConfig, seconds_of
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes.waiting import call_within

_log = logging.getLogger(__name__)
_AHEAD = 3  # Number of windows that are planned ahead of the training.
# Time without a window after which workers complete a step with padding. A replay with a known end should need none,
# but a signal must not wait for as long as grace_secs.
_REST_SECONDS, _REPLAY_REST_SECONDS = 2.0, 10.0
_POLL_SECONDS, _COMMIT_SECONDS = 0.05, 10.0
_KEPT_BATCHES = 1000  # Number of the last batches after each of which the position is known.


class NotYet(Exception):
    """A window is not planned yet, because few records arrive, or because the training is behind the plan."""


class Coordinator:
    """Plans windows in a thread of rank 0.

    `per_step`: number of batches of each worker per step. `closing`: functions that `close` calls.
    """

    def __init__(
        self,
        open_source: Callable[[], StreamSource],
        config: StreamConfig,
        position: StreamPosition | None,
        workers: int,
        batch_size: int,
        dead_letters: DeadLetters,
        figures: Figures,
        per_step: int = 1,
    ) -> None:
        self._open_source, self._config, self._workers, self._batch_size = open_source, config, workers, batch_size
        self._position, self._dead_letters, self._per_step = position, dead_letters, per_step
        is_replay = config.until and time.time() >= (seconds_of(config.until) or 0.0)
        self._rest_seconds = _REPLAY_REST_SECONDS if is_replay else _REST_SECONDS
        self._committing = threading.Lock()  # Held by the thread of a commit, which may hang.
        self._changed = threading.Condition()  # Guards all attributes below.
        self._windows: dict[int, Window] = {}
        self._planned = self._released = self._begun = 0  # Numbers of windows.
        self._directives: collections.deque[tuple[Directive, int]] = collections.deque()  # (directive, batches before).
        self._first = 0  # Number of the first directive in `_directives`.
        self._batches = 0  # Number of batches of all directives so far.
        self._start: StreamPosition | None = None
        self._hints: dict[int, int] = {}
        self._rates: dict[int, float] = {}  # Rows per message of a window, by its number.
        # What workers have not read of a window, and the number of its records if known, by the window's number.
        self._rests: dict[int, tuple[list[Range], int | None]] = {}
        self._bad_rows = 0
        self._error: BaseException | None = None
        self._is_closed = self._is_over = False
        self.figures = figures
        self.closing: list[Callable[[], None]] = []
        self._source: StreamSource | None = None
        self._thread = threading.Thread(target=self._run, name="stream coordinator", daemon=True)
        self._thread.start()

    def share(self, window: int, rank: int = 0, seconds: float | None = None) -> list[Range] | None:
        """Waits for a window's plan, and returns a worker's share; None at the end. Raises NotYet after `seconds`."""
        with self._changed:
            if not self._wait_for(lambda: window < self._planned or self._is_over, seconds):
                raise NotYet
            return self._windows[window].shares[rank] if window < self._planned and not self._is_closed else None

    def report(self, window: int, report: Report, rank: int = 0) -> None:
        """Receives the report of a worker that has read its share of a window."""
        with self._changed:
            found = self._windows[window]
            found.reports[rank] = report
            for partition, offset in report.watermarks.items():
                self._hints[partition] = max(self._hints.get(partition, 0), offset)
            while self._error is None and self._released < self._planned:
                if len(self._windows[self._released].reports) < self._workers:
                    break
                self._release(self._released)
            self._changed.notify_all()

    def directive(self, number: int, rank: int = 0) -> Directive:
        """Waits for the directive with this number, counted from 0, and returns it."""
        with self._changed:
            if rank == 0:
                is_there = self._wait_for(lambda: self._has(number), self._rest_seconds)
                if not is_there:
                    self._give(Directive("rest", steps=self._per_step - self._batches % self._per_step))
            else:
                self._wait_for(lambda: self._has(number))
            if not self._has(number):
                return Directive("end")
            directive = self._directives[number - self._first][0]
            if rank == 0 and directive.kind == "window":
                self._begun = directive.window + 1
                self.figures.begin(self._windows[directive.window])
                self._changed.notify_all()
            return directive

    def position_after(self, batches: int) -> StreamPosition | None:
        """Returns the position after this number of batches per worker.

        Before the stream is opened, this is the position in the checkpoint, or None if there is none.
        """
        with self._changed:
            position = self._start
            if position is None:
                return self._position
            for directive, before in self._directives:
                if before > batches or (before == batches and directive.steps):
                    break
                if directive.kind == "window":
                    taken = min(batches - before, directive.steps)
                    position = self._after(position, self._windows[directive.window], taken)
            kept = [pair for pair in self._directives if pair[1] + pair[0].steps >= batches - _KEPT_BATCHES]
            self._forget(len(self._directives) - len(kept))
            return position

    def commit(self, position: StreamPosition) -> None:
        """Commits the position of a checkpoint to the brokers, or warns if that fails or takes longer than 10 s."""

        def commit() -> None:
            with self._committing, contextlib.closing(self._open_source()) as source:
                source.commit(position.trained())

        try:
            if self._committing.locked():
                raise TimeoutError("the previous commit has not ended")
            if self._source is not None and position.next:
                call_within(_COMMIT_SECONDS, commit)  # For a lost broker, a client of Kafka waits 45 s or much longer.
        except Exception as error:  # The training does not depend on what is committed.
            _log.warning("the positions were not committed to the broker, but are in the checkpoint: %s", error)

    def fail(self, error: BaseException) -> None:
        """Ends the reading of all workers with an error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all waits and the thread, and calls the functions in `closing`."""
        with self._changed:
            self._is_closed = self._is_over = True
            self._changed.notify_all()
        self._thread.join(30)
        for close in self.closing:
            close()

    def _has(self, number: int) -> bool:
        return number < self._first + len(self._directives)

    def _wait_for(self, is_so: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits for a condition or for `close`; returns False after a timeout. Raises the planning thread's error."""
        found = self._changed.wait_for(lambda: is_so() or self._is_closed or self._error is not None, seconds)
        if self._error is not None:
            raise self._error
        return found

    def _give(self, directive: Directive) -> None:
        self._directives.append((directive, self._batches))
        self._batches += directive.steps
        self._changed.notify_all()

    def _release(self, number: int) -> None:
        """Schedules the training on a window that all workers have read."""
        window, source = self._windows[number], self._source
        assert source is not None
        read = sum(report.messages for report in window.reports.values())
        gone = 0 if source.has_gaps else window.messages - read
        rest = [each for report in window.reports.values() for each in report.rest]
        if gone > 0 and not rest:
            self._error = UserError(
                f"{source.name}: {gone} of {window.messages} records were removed before they were read. Keep more "
                "records in the stream, such as with a larger MAXLEN, and run the same command again"
            )
            return
        bad = [letter for rank in range(self._workers) for letter in window.reports[rank].bad]
        try:
            if bad:
                self._dead_letters.write(bad)
        except UserError as error:  # All workers end with it, not only the one that reports last.
            self._error = error
            return
        for letter in bad:
            self._bad_rows += 1
            place = f"{letter['stream']}, partition {letter['partition']}, offset {letter['offset']}"
            text = f"{place}, row {letter['row']}: {letter['reason']}"
            if self._bad_rows > self._config.max_bad_rows:
                self._error = UserError(
                    f"{text}. This is bad row {self._bad_rows}, above the limit "
                    f"max_bad_rows={self._config.max_bad_rows}. Correct the program that writes the stream, or "
                    "increase max_bad_rows, and run the same command again to resume"
                )
                return
            _log.warning("bad row %d of at most %d, left out: %s", self._bad_rows, self._config.max_bad_rows, text)
        if window.rows:
            messages = read if rest else window.messages
            self._rates[number] = max((window.rows + len(bad)) / max(messages, 1), 1.0)
        else:  # Markers of transactions, or bad messages, do not tell how many rows a message has.
            self._rates[number] = self._rates.get(number - 1, 0.0)
        self._rates.pop(number - 2 * _AHEAD, None)
        self._rests[number] = rest, None if source.has_gaps else gone
        self._released = number + 1
        steps = window.steps(self._batch_size)
        self.figures.add(window)
        self._give(Directive("window", number, steps))

    def _after(self, position: StreamPosition, window: Window, batches: int) -> StreamPosition:
        left = [each for each in position.left if each not in window.again] + window.left_after(batches)
        rows = sum(min(report.rows, batches * self._batch_size) for report in window.reports.values())
        return dataclasses.replace(
            position,
            next=window.next,
            left=tuple(left),
            bad_rows=position.bad_rows + window.bad_before(batches),
            records=position.records + rows,
            marks=window.marks(position.marks),
        )

    def _forget(self, count: int) -> None:
        """Drops the first directives, whose batches are trained, and advances the start position accordingly."""
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
        planner = Planner(
            source=source,
            config=self._config,
            workers=self._workers,
            batch_size=self._batch_size,
            figures=self.figures,
            sleep=self._sleep,
            open_source=self._open_source,
        )
        position, left = planner.begin(self._position)
        with self._changed:
            self._start, self._bad_rows = position, position.bad_rows
            self._changed.notify_all()
        if left is not None:
            self._add(left)
        while True:
            with self._changed:
                self._wait_for(lambda: self._planned < self._begun + _AHEAD and self._planned < self._released + 2)
                if self._is_closed:
                    return
                # The last window may be read or not, and a replay must not depend on that.
                rate, hints = self._rates.get(self._planned - 2, 0.0), dict(self._hints)
                rest, messages = self._rests.pop(self._planned - 2, ([], 0))
            window = planner.again(rest, messages) if rest else planner.next(hints, rate)
            if window is None:
                with self._changed:
                    self._wait_for(lambda: not planner.is_over or self._released == self._planned)
                    rest, messages = self._rests.pop(self._planned - 1, ([], 0))
                window = planner.again(rest, messages) if rest else None
            if window is not None:
                self._add(window)
            elif planner.is_over:
                break
            else:
                self._sleep(planner.until_next(_POLL_SECONDS))
        with self._changed:
            self._is_over = True
            self._give(Directive("end"))

    def _add(self, window: Window) -> None:
        with self._changed:
            self._windows[self._planned] = window
            self._planned += 1
            self._changed.notify_all()

    def _sleep(self, seconds: float) -> None:
        with self._changed:
            if self._changed.wait_for(lambda: self._is_closed, seconds):
                raise _Closed


class _Closed(Exception):
    """The training ended while the thread was waiting."""
