"""Publishes a model while it trains."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ctr_trainer.live.publication.delivery import DeliverySupervisor
from ctr_trainer.live.publication.spool import DeliveryStatus, Spool
from ctr_trainer.settings.training_configs import PublishConfig
from ctr_trainer.system.messages.errors import UserError, diverged

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
# The most records that wait for their delivery. Meanwhile, the tables' change bits collect later changes.
_MOST_WAITING = 2
_OLD_PERIODS, _OLD_SECONDS = 6, 30.0  # While records wait, delivered rows that are older than both are reported.
_REPEAT_SECONDS = 60.0
_CLOSE_SECONDS = 2.0


class Publisher:
    """Writes records into a spool from a background thread. No training step waits for it.

    The training thread offers the values of the dense tower from time to time. The background thread publishes the
    latest offer, with the current rows, once at most one earlier record waits for its delivery. It does not publish an
    offer that is not finite. It logs errors and retries; an error never ends the training.

    Args:
      spool: the `Spool`, to which only this publisher writes.
      write_tower: f(local directory, values of the variables), writes the dense tower as a SavedModel.
      delivery: restarts the process that delivers the spool; None if no process delivers it.

    Attributes:
      failures: number of failed attempts to publish.
    """

    def __init__(
        self,
        spool: Spool,
        write_tower: Callable[[str, Mapping[str, np.ndarray]], object],
        delivery: DeliverySupervisor | None,
        config: PublishConfig,
    ) -> None:
        self._spool, self._write_tower, self._delivery, self._config = spool, write_tower, delivery, config
        self._offer: tuple[int, Mapping[str, np.ndarray]] | None = None
        self._lock = threading.Lock()
        self._woken, self._ending, self._done = threading.Event(), threading.Event(), threading.Event()
        self._retry_at = 0.0
        self._times: dict[int, float] = {}  # When the rows of an epoch were taken.
        self._status: DeliveryStatus | None = None
        self._begun = time.time()
        self.failures, self._problem = 0, ""
        self._logged_at: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="publishing", daemon=True)

    def offer(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Offers the values of the dense variables, by name, after a step. Returns at once."""
        with self._lock:
            self._offer = step, values
            self._done.clear()
        self._woken.set()
        if not self._thread.is_alive():
            self._thread.start()

    def finish(self, seconds: float) -> None:
        """Waits until the last offer is published and delivered; logs an error if that takes more than `seconds`."""
        deadline = time.monotonic() + seconds
        published = self._done.wait(seconds)
        while published and self._waiting() and time.monotonic() < deadline:
            self._ending.wait(_LOOK_SECONDS)
        if not published or self._waiting():
            step = self._spool.last.global_step if self._spool.last else None
            what = f"step {step} is written, but not fully delivered" if published else "it has not been written yet"
            _log.error(
                "the end of the training was not published to %s within %.0f s: %s%s. The next training publishes all "
                "rows again",
                self._config.to,
                seconds,
                what,
                f"; {self._problem}" if self._problem else "",
            )

    def close(self) -> None:
        """Ends the thread and the delivery, even if they are not finished."""
        self._ending.set()
        self._spool.close()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        if self._delivery:
            self._delivery.close()

    @property
    def age_secs(self) -> float:
        """Seconds since the delivered rows were taken, or since the training began if none are delivered yet."""
        served = self._spool.last.epoch - self._waiting() if self._spool.last else -1
        return max(time.time() - self._times.get(served, self._begun), 0.0)

    def results(self) -> dict[str, Any]:
        """Returns the figures of the publication for the training summary."""
        spool = self._spool
        return {
            "to": self._config.to,
            "epochs": spool.records,
            "rows": spool.rows,
            "removed": spool.removed,
            "global_step": spool.last.global_step if spool.last else None,
            "waiting": self._waiting(),
            "age_secs": round(self.age_secs, 3),
            "failures": self.failures,
        }

    def status_line(self) -> str:
        """Returns a line for the log. Reads no file."""
        figures = {**self.results(), "age_secs": f"{self.age_secs:.1f}"}
        named = "  ".join(f"{name}: {figures[name]}" for name in ("epochs", "rows", "removed", "waiting", "age_secs"))
        return f"[RunStatus]: Publication statistics => {named}"

    def _waiting(self) -> int:
        """Returns the number of written records that the last read status does not report as delivered."""
        if self._spool.last is None or self._delivery is None:
            return 0
        return self._spool.last.epoch - (self._status.epoch if self._status else -1)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._woken.wait(_LOOK_SECONDS)
            self._woken.clear()
            try:
                self._look()
            except Exception as error:  # An error in publishing never ends the training.
                if self._ending.is_set():
                    return
                self.failures += 1
                self._retry_at = time.monotonic() + max(self._config.secs, 1.0)
                if not isinstance(error, UserError | OSError):
                    _log.debug("publishing", exc_info=True)
                self._warn("writing", f"not published: {error or type(error).__name__}")

    def _look(self) -> None:
        if self._delivery:
            self._look_after(self._delivery)
        with self._lock:
            offer = self._offer
        if offer is None or time.monotonic() < self._retry_at:
            return
        if self._waiting() >= _MOST_WAITING:
            self._warn_if_old()
            return
        step, values = offer
        wrong = _first_not_finite(values)
        if wrong:
            self.failures += 1
            self._warn("diverged", f"step {step} is not published: {diverged(f'the variable {wrong} is not finite')}")
        else:
            self._publish(step, values)
        with self._lock:
            if self._offer is offer:
                self._offer = None
                self._done.set()

    def _look_after(self, delivery: DeliverySupervisor) -> None:
        delivery.keep()
        self._status = status = self._spool.status()
        if status and status.needs_base and self._spool.last:
            _log.warning("publishing all rows again to %s: %s", self._config.to, status.problem)
            self._spool.begin()
            self._times, self._status = {}, None
        elif status and status.problem:
            self._warn("delivery", f"not delivered: {status.problem}")

    def _publish(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        begun, is_first = time.monotonic(), self._spool.last is None
        record = self._spool.write(step, lambda path: self._write_tower(path, values))
        self._times[record.epoch] = record.time
        self._times.pop(record.epoch - _MOST_WAITING - 2, None)
        self._retry_at, self._problem = 0.0, ""
        self._logged_at.pop("writing", None)
        log = _log.info if is_first else _log.debug
        seconds = time.monotonic() - begun
        log("published %s %d of step %d: %d rows, %.1f s", record.kind, record.epoch, step, record.rows, seconds)

    def _warn_if_old(self) -> None:
        age = self.age_secs
        if age > max(_OLD_PERIODS * self._config.secs, _OLD_SECONDS):
            self._warn("age", f"{self._waiting()} records wait to be delivered; the rows there are {age:.0f} s old")

    def _warn(self, kind: str, text: str) -> None:
        """Logs a problem, at most one of each kind per minute."""
        self._problem = text
        now = time.monotonic()
        if now > self._logged_at.get(kind, -_REPEAT_SECONDS) + _REPEAT_SECONDS:
            _log.warning("%s: %s; the training continues, and later epochs contain all changes", self._config.to, text)
            self._logged_at[kind] = now


def _first_not_finite(values: Mapping[str, np.ndarray]) -> str:
    """Returns the name of the first variable that has an infinity or a NaN; "" if there is none."""
    for name, value in values.items():
        array = np.asarray(value)
        if array.dtype.kind not in "OSUbiu" and not np.isfinite(array).all():
            return name
    return ""
