"""Publishes a training beside its steps."""

import logging
import threading
import time

import numpy as np

from ctr_trainer.messages.errors import UserError, diverged

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
# So many records wait for their delivery at most; what changes meanwhile gathers in the tables' bits.
_MOST_WAITING = 2
_OLD_PERIODS, _OLD_SECONDS = 6, 30.0  # What waits for longer than either is said.
_REPEAT_SECONDS = 60.0
_CLOSE_SECONDS = 2.0


class Publisher:
    """Writes records into a spool, in a thread of its own; no step waits for it.

    The thread of the steps offers the values of the dense tower now and then. The last offer is published with the rows
    as they are then, once the records before it are delivered up to one. An offer that is not finite is not published.
    What fails is said, and tried again: it never ends a training.

    Args:
      spool: `Spool`.
      tower: has `write(directory, values)`.
      to: where the spool is delivered to, as the log calls it.
      delivery: `DeliverySupervisor`; None if nobody takes the records away.
      config: `PublishConfig`.
      clock: f() -> seconds.
    """

    def __init__(self, spool, tower, to, delivery, config, clock=time.monotonic):
        self._spool, self._tower, self._to, self._delivery = spool, tower, to, delivery
        self._config, self._clock = config, clock
        self._offer, self._lock = None, threading.Lock()
        self._woken, self._ending, self._done = threading.Event(), threading.Event(), threading.Event()
        self._retry_at = None
        self._times, self._delivered, self._begun = {}, None, time.time()
        self.failures, self._problem, self._said_at = 0, "", {}
        self._thread = threading.Thread(target=self._run, name="publishing", daemon=True)

    def offer(self, step, values):
        """Offers the dense variables as they are after a step: by name, an array each. Returns at once."""
        with self._lock:
            self._offer = step, values
            self._done.clear()
        self._woken.set()
        if not self._thread.is_alive():
            self._thread.start()

    def finish(self, seconds):
        """Waits until the last offer is published and delivered, and says so if it is not within `seconds`."""
        deadline = self._clock() + seconds
        published = self._done.wait(seconds)
        while published and self._delivery and self._waiting() and self._clock() < deadline:
            self._ending.wait(_LOOK_SECONDS)
        if not published or (self._delivery and self._waiting()):
            step = self._spool.last.global_step if self._spool.last else None
            what = f"step {step} is written, and not all of it delivered" if published else "it is not written yet"
            _log.error(
                "the end of the training was not published to %s within %.0f s: %s%s. The next training publishes all "
                "rows anew",
                *(self._to, seconds, what, f"; {self._problem}" if self._problem else ""),
            )

    def close(self):
        """Ends its thread and the delivery, whatever they are at."""
        self._ending.set()
        self._spool.close()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        if self._delivery:
            self._delivery.close()

    @property
    def age_secs(self):
        """Seconds since the rows that are served were taken, or since the beginning if none are served yet."""
        served = self._spool.last.epoch - self._waiting() if self._spool.last else -1
        return max(time.time() - self._times.get(served, self._begun), 0.0)

    def results(self):
        """-> dict of what was published, for the summary of the training."""
        spool = self._spool
        return {
            "to": self._to,
            "epochs": spool.records,
            "rows": spool.rows,
            "removed": spool.removed,
            "global_step": spool.last.global_step if spool.last else None,
            "waiting": self._waiting(),
            "age_secs": round(self.age_secs, 3),
            "failures": self.failures,
        }

    def status_line(self):
        """-> the line of the log; no file is read for it."""
        figures = {**self.results(), "age_secs": f"{self.age_secs:.1f}"}
        named = "  ".join(f"{name}: {figures[name]}" for name in ("epochs", "rows", "removed", "waiting", "age_secs"))
        return f"[RunStatus]: Publication statistics => {named}"

    def _waiting(self):
        """-> how many records are written and not delivered, as far as the thread has looked."""
        if self._spool.last is None or self._delivery is None:
            return 0
        delivered = self._delivered.epoch if self._delivered else -1
        return self._spool.last.epoch - delivered

    def _run(self):
        while not self._ending.is_set():
            self._woken.wait(_LOOK_SECONDS)
            self._woken.clear()
            try:
                self._look()
            except Exception as error:  # Whatever it is, the training goes on.
                if self._ending.is_set():
                    return
                self.failures += 1
                self._retry_at = self._clock() + max(self._config.secs, 1.0)
                if not isinstance(error, (UserError, OSError)):
                    _log.debug("publishing", exc_info=True)
                self._say("writing", f"not published: {error or type(error).__name__}")

    def _look(self):
        if self._delivery:
            self._delivery.keep()
            self._delivered = self._spool.status()
            if self._delivered and self._delivered.needs_base and self._spool.last:
                _log.warning("publishing all rows anew to %s: %s", self._to, self._delivered.problem)
                self._spool.begin()
                self._times, self._delivered = {}, None
            if self._delivered and self._delivered.problem:
                self._say("delivery", f"not delivered: {self._delivered.problem}")
        with self._lock:
            offer = self._offer
        if offer is None or (self._retry_at and self._clock() < self._retry_at):
            return
        if self._waiting() >= _MOST_WAITING:
            self._say_if_old()
            return
        wrong = _first_not_finite(offer[1])
        if wrong:
            self.failures += 1
            self._say(
                "diverged", f"step {offer[0]} is not published: {diverged(f'the variable {wrong} is not finite')}"
            )
        else:
            self._publish(*offer)
        with self._lock:
            if self._offer is offer:
                self._offer = None
                self._done.set()

    def _publish(self, step, values):
        begun, is_first = self._clock(), self._spool.last is None
        record = self._spool.write(step, lambda path: self._tower.write(path, values))
        self._times[record.epoch] = record.time
        self._times.pop(record.epoch - _MOST_WAITING - 2, None)
        self._retry_at, self._problem = None, ""
        self._said_at.pop("writing", None)
        log = _log.info if is_first else _log.debug
        seconds = self._clock() - begun
        log("published %s %d of step %d: %d rows, %.1f s", record.kind, record.epoch, step, record.rows, seconds)

    def _say_if_old(self):
        age = self.age_secs
        if age > max(_OLD_PERIODS * self._config.secs, _OLD_SECONDS):
            self._say("age", f"{self._waiting()} records wait for their delivery, the rows there are {age:.0f} s old")

    def _say(self, what, text):
        """Logs a problem; another one of the same kind not before a minute has passed."""
        self._problem = text
        now = self._clock()
        if now > self._said_at.get(what, -_REPEAT_SECONDS) + _REPEAT_SECONDS:
            _log.warning("%s: %s; the training goes on, and what has changed is published later", self._to, text)
            self._said_at[what] = now


def _first_not_finite(values: dict[str, np.ndarray]) -> str:
    """Returns the name of the first variable that holds an infinity or a NaN; "" if there is none."""
    for name, value in values.items():
        array = np.asarray(value)
        if array.dtype.kind not in "OSUbiu" and not np.isfinite(array).all():
            return name
    return ""
