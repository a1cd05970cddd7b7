"""Scores the examples of concurrent requests together."""

import collections
import concurrent.futures
import dataclasses
import logging
import threading
import time

from ctr_trainer.scoring.examples import Examples
from ctr_trainer.scoring.refusals import NotReady, QueueFull, RequestRefused, TookTooLong

_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class _Waiting:
    examples: Examples
    arrived: float
    deadline: float
    future: concurrent.futures.Future


class Batcher:
    """A queue of examples, and threads that score as many of them at a time as a batch may have.

    A batch takes whole requests, in their order. If one request fails a batch, each of its requests is scored alone.

    Args:
      score: f(`Examples`) -> `Scored`.
      limits: `ScoreLimits`.
      on_batch: f(`Scored`, number of examples, seconds that the first request waited), called after each batch.
    """

    def __init__(self, score, limits, on_batch=lambda scored, examples, waited: None):
        self._score, self._limits, self._on_batch = score, limits, on_batch
        self._queue = collections.deque()
        self._examples = 0
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"score-{number}", daemon=True) for number in range(limits.threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self):
        """Number of examples that wait."""
        return self._examples

    def submit(self, examples):
        """Adds the examples of a request.

        Returns:
          the Future of their `Scored`. If it is cancelled before its batch begins, nothing is scored.

        Raises:
          QueueFull: too many examples wait.
          NotReady: the server ends.
        """
        now = time.monotonic()
        waiting = _Waiting(examples, now, now + self._limits.timeout_secs, concurrent.futures.Future())
        with self._changed:
            if self._closed:
                raise NotReady("the server ends: send the request to another one")
            if self._examples and self._examples + examples.count > self._limits.max_queue:
                raise QueueFull(
                    f"{self._examples} examples wait, and {self._limits.max_queue} may (--max_queue): send the request "
                    "again later, or to another server"
                )
            self._queue.append(waiting)
            self._examples += examples.count
            self._changed.notify()
        return waiting.future

    def close(self):
        """Scores what waits, then ends the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)
            if thread.is_alive():
                _log.warning("a batch under way did not end within %d s: it is cut off", _CLOSE_SECONDS)

    def _run(self):
        while (batch := self._take()) is not None:
            for same in _with_same_inputs(batch):
                self._answer(same)

    def _take(self):
        """-> the requests of the next batch; None at the end."""
        with self._changed:
            while not self._queue:
                if self._closed:
                    return None
                self._changed.wait()  # For a request or the end, however long.
            until = self._queue[0].arrived + self._limits.batch_delay_ms / 1000
            while not self._closed and self._examples < self._limits.max_batch_size:
                if not self._queue:
                    return []  # Another thread has taken them.
                if (left := until - time.monotonic()) <= 0:
                    break
                self._changed.wait(left)
            batch, count = [], 0
            while self._queue and (not batch or count + self._queue[0].examples.count <= self._limits.max_batch_size):
                batch.append(self._queue.popleft())
                count += batch[-1].examples.count
            self._examples -= count
            if self._queue:
                self._changed.notify()
        return batch

    def _answer(self, batch):
        now, taken = time.monotonic(), []
        for each in batch:
            if not each.future.set_running_or_notify_cancel():
                continue
            if now > each.deadline:
                each.future.set_exception(self._too_late())
            else:
                taken.append(each)
        if taken:
            self._score_all(taken, now - taken[0].arrived)

    def _score_all(self, batch, waited):
        examples = Examples.merged([each.examples for each in batch])
        try:
            scored = self._score(examples)
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, RequestRefused):
                for each in batch:
                    self._score_all([each], waited)
                return
            if not isinstance(error, RequestRefused):
                _log.exception("a batch of %d examples failed", examples.count)
            for each in batch:
                each.future.set_exception(error)
            return
        self._on_batch(scored, examples.count, waited)
        first = 0
        for each in batch:
            each.future.set_result(scored.part(first, each.examples.count))
            first += each.examples.count

    def _too_late(self):
        return TookTooLong(f"not scored within {self._limits.timeout_secs:g} s (--timeout_secs)")


def _with_same_inputs(batch):
    """-> list of lists of requests of one batch: those checked against other `RawInputs` are apart."""
    groups = {}
    for each in batch:
        groups.setdefault(each.examples.inputs, []).append(each)
    return list(groups.values())
