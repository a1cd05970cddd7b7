"""Scores the examples of concurrent requests together."""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable

from ctr_trainer.live.scoring.examples import Examples
from ctr_trainer.live.scoring.refusals import RequestRefused
from ctr_trainer.live.scoring.served_model import Scored
from ctr_trainer.settings.command_flags import ScoreLimits

_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 30
# Limit of the values that wait, as a number of requests of the largest size.
_MOST_LARGE_REQUESTS = 16
# Parsing and answering a request takes about as long as scoring so many examples.
_EXAMPLES_A_REQUEST = 16
# Share of the earlier answers that remains in the mean time per example after each answer.
_MEMORY = 0.997
# The event loop gathers requests for a batch for at most this time.
_GATHER_SECONDS = 0.001


@dataclasses.dataclass(frozen=True)
class _Waiting:
    examples: Examples
    arrived: float
    future: asyncio.Future[Scored]


_Result = tuple[asyncio.Future[Scored], Scored | RequestRefused]


class Batcher:
    """A queue of examples, which are scored in batches.

    A batch consists of whole requests, in order of arrival. If it fails, each of its requests is scored alone. A
    request is not scored if its future was cancelled, as the server does after `timeout_secs`. The methods run in the
    thread of the event loop.

    A free thread scores the waiting requests as one batch, so batches grow with the load. With one thread and rows on
    this host, the event loop scores instead, once a turn of it has brought no further request: on one core, two threads
    that wait for each other's turn double the time of a request.

    Args:
      is_local: returns whether the rows are on this host, see `RowReader`.
      on_batch: f(scored, number of examples, seconds that the first request waited), called after each batch.
    """

    def __init__(
        self,
        score: Callable[[Examples], Scored],
        limits: ScoreLimits,
        is_local: Callable[[], bool],
        on_batch: Callable[[Scored, int, float], None] = lambda scored, examples, waited: None,
    ) -> None:
        self._score, self._limits, self._is_local, self._on_batch = score, limits, is_local, on_batch
        self._most_values = _MOST_LARGE_REQUESTS * limits.max_values
        self._queue: collections.deque[_Waiting] = collections.deque()
        self.waiting = self._values = 0  # Numbers of waiting examples and of their values.
        self._open_examples, self._seconds, self._answered, self._answered_at = 0, 0.0, 0.0, 0.0
        self._changed = threading.Condition()
        self._closed = False
        self._is_loop_told = False  # Whether the event loop will call `_score_in_loop`.
        self._threads = [
            threading.Thread(target=self._run, name=f"score-{number}", daemon=True) for number in range(limits.threads)
        ]
        for thread in self._threads:
            thread.start()

    def refuse_late(self) -> None:
        """Raises RequestRefused if a request that arrives now would be answered after `timeout_secs`.

        The answer is expected after the answers to the open requests, at the recent rate of answers. This time counts
        twice, because the server reads a request as late as it answers it.
        """
        expected = 2 * self._open_examples * self._seconds / max(self._answered, 1.0)
        if expected > self._limits.timeout_secs:
            raise RequestRefused(
                f"the answer would take {expected:.1f} s, over {self._limits.timeout_secs:g} s (timeout_secs): send "
                "the request again later, or to another server",
                status=429,
            )

    def note_open(self, examples: Examples) -> None:
        """Counts a request for `refuse_late` until `note_answered`."""
        if not self._open_examples:
            self._answered_at = time.monotonic()
        self._open_examples += examples.count + _EXAMPLES_A_REQUEST

    def note_answered(self, examples: Examples) -> None:
        count, now = examples.count + _EXAMPLES_A_REQUEST, time.monotonic()
        self._open_examples -= count
        self._seconds = _MEMORY * self._seconds + now - self._answered_at
        self._answered, self._answered_at = _MEMORY * self._answered + count, now

    def submit(self, examples: Examples) -> asyncio.Future[Scored]:
        """Adds the examples of a request. If the future is cancelled before its batch begins, nothing is scored.

        Raises RequestRefused: too many examples wait, or the server is shutting down.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(examples, time.monotonic(), loop.create_future())
        with self._changed:
            if self._closed:
                raise RequestRefused("the server is shutting down: send the request to another one", status=503)
            if self._is_full(waiting):
                self._drop_cancelled()
            if self._is_full(waiting):
                raise RequestRefused(
                    f"{self.waiting} examples wait; the limit is {self._limits.max_queue} examples (max_queue), with "
                    f"at most {self._most_values} values: send the request again later, or to another server",
                    status=429,
                )
            self._queue.append(waiting)
            self._count(waiting, 1)
            if self._limits.threads > 1 or not self._is_local():
                self._changed.notify()
            elif not self._is_loop_told:
                self._is_loop_told = True
                loop.call_soon(self._score_in_loop, 0)
        return waiting.future

    def close(self) -> None:
        """Ends the threads, after the batches under way."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)
            if thread.is_alive():
                _log.warning("a batch did not end within %d s and is aborted", _CLOSE_SECONDS)

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            results, loop = self._results(batch), batch[0].future.get_loop()
            with contextlib.suppress(RuntimeError):  # The loop may have ended without these requests.
                loop.call_soon_threadsafe(_answer, results)

    def _score_in_loop(self, known: int) -> None:
        """Scores a batch, or waits for another turn of the loop if the last one brought more than `known` requests."""
        queue, soon = self._queue, asyncio.get_running_loop().call_soon
        if len(queue) > known and time.monotonic() < queue[0].arrived + _GATHER_SECONDS:
            soon(self._score_in_loop, len(queue))
            return
        with self._changed:
            batch = self._first_of_queue()
        _answer(self._results(batch))
        self._is_loop_told = bool(self._queue)
        if self._is_loop_told:  # After another turn, so that what arrived meanwhile is read first.
            soon(soon, self._score_in_loop, len(self._queue))

    def _take(self) -> list[_Waiting] | None:
        """Waits for and returns the requests of the next batch; None after `close`."""
        with self._changed:
            while not self._queue:
                if self._closed:
                    return None
                self._changed.wait()  # For a request or `close`, without a time limit.
            batch = self._first_of_queue()
            if self._queue:
                self._changed.notify()
        return batch

    def _first_of_queue(self) -> list[_Waiting]:
        """Takes as many requests from the queue as can be merged within a batch's limits of examples and values."""
        batch: list[_Waiting] = []
        count = 0
        widths: tuple[int, ...] = ()
        while self._queue:
            examples = self._queue[0].examples
            joint_count = count + examples.count
            pairs = itertools.zip_longest(widths, examples.widths, fillvalue=0)
            joint_widths = tuple(map(max, pairs))
            if batch and (
                joint_count > self._limits.max_batch_size
                or joint_count * (examples.inputs.fixed + sum(joint_widths)) > self._limits.max_values
                or not examples.may_join(batch[0].examples)
            ):
                break
            count, widths = joint_count, joint_widths
            batch.append(self._queue.popleft())
            self._count(batch[-1], -1)
        return batch

    def _is_full(self, waiting: _Waiting) -> bool:
        return self.waiting > 0 and (
            self.waiting + waiting.examples.count > self._limits.max_queue
            or self._values + waiting.examples.values > self._most_values
        )

    def _drop_cancelled(self) -> None:
        queue, self._queue = self._queue, collections.deque()
        self.waiting = self._values = 0
        for each in queue:
            if not each.future.cancelled():
                self._queue.append(each)
                self._count(each, 1)

    def _count(self, waiting: _Waiting, sign: int) -> None:
        self.waiting += sign * waiting.examples.count
        self._values += sign * waiting.examples.values

    def _results(self, batch: list[_Waiting]) -> list[_Result]:
        """Scores requests together, except cancelled ones and those that have waited for too long."""
        first = time.monotonic() - self._limits.timeout_secs
        late: list[_Result] = [(each.future, not_in_time(self._limits)) for each in batch if each.arrived < first]
        in_time = [each for each in batch if each.arrived >= first and not each.future.cancelled()]
        return late + (self._scored(in_time) if in_time else [])

    def _scored(self, batch: list[_Waiting]) -> list[_Result]:
        """Scores requests together. An error becomes the result of these requests."""
        count, waited = sum(each.examples.count for each in batch), time.monotonic() - batch[0].arrived
        try:
            scored = self._score(Examples.merged([each.examples for each in batch]))
            self._on_batch(scored, count, waited)
            ends = itertools.accumulate(each.examples.count for each in batch)
            return [
                (each.future, scored.part(end - each.examples.count, each.examples.count))
                for each, end in zip(batch, ends, strict=True)
            ]
        except RequestRefused as error:
            return [(each.future, error) for each in batch]
        except Exception as error:
            if len(batch) > 1:
                return [result for each in batch for result in self._scored([each])]
            _log.exception("a batch of %d examples failed", count)
            text = f"the model failed: {type(error).__name__}; the server's log says more"
            return [(batch[0].future, RequestRefused(text, status=500))]


def _answer(results: list[_Result]) -> None:
    """Gives requests their results, except those that were cancelled meanwhile. Call it in the event loop."""
    for future, result in results:
        if future.cancelled():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


def not_in_time(limits: ScoreLimits) -> RequestRefused:
    return RequestRefused(f"not scored within {limits.timeout_secs:g} s (timeout_secs)", status=504)
