"""Publishes a model while it trains."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from ctr_trainer.live.publication.delivery import DeliverySupervisor
from ctr_trainer.live.publication.spool import DeliveryStatus, Spool
from ctr_trainer.settings.training_configs import PublishConfig
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError, diverged
from ctr_trainer.system.messages.log_lines import Seldom

_log = logging.getLogger(__name__)
_LAST_SECONDS, _SHARE_OF_GRACE = 600.0, 3
_LOOK_SECONDS, _CLOSE_SECONDS = 0.2, 2.0
_OLD_PERIODS, _OLD_SECONDS = 6, 30.0  # While a record waits, delivered rows that are older than both are reported.
_PREPARING_SECONDS = 0.002
_REPEAT_SECONDS = 60.0  # A problem is logged again after this time.
# A training that waits for input for this part of the time has cores to spare. Any other makes its next offer after so
# many times the seconds that the last record took to write, because both use the same cores. With two workers on two
# cores, the demo then has 0.94 of its speed without a publication, with ten times 0.89, and else 0.70.
_SPARE_SHARE, _TIMES = 0.1, 20


class Publisher:
    """Publishes rows and dense tower at the start of a training, after each delivery, and at the end.

    When the previous record is delivered, and at least `config.secs` seconds after the previous offer, the training
    thread starts a sync of the rows and offers the values of the tower's variables. A background thread writes the
    offer with the synced rows into the spool; no training step waits for it. Meanwhile, the tables' change bits collect
    later changes. It does not publish an offer that is not finite. It logs errors and retries; an error never ends the
    training. While the training hardly waits for input, as when it catches up with a stream, records are written in at
    most a twentieth of the time.

    Staleness: if the workers average their dense variables only every few steps, the tower has the variables of rank 0.

    Args:
      spool: the `Spool`, to which only this object writes.
      variables: the tower's variables by name.
      write_tower: f(local directory, values of the variables), writes the dense tower as a SavedModel.
      delivery: restarts the process that delivers the spool.
      clock: `Clock` of the training thread.
      is_stopping: f() -> whether a signal has asked the training to end.
      grace_secs: seconds that the end of the training may then take.
      prepare: f(), called before each offer, begins to bring the rows of the store up to date; returns f() -> whether
        this still runs.
    """

    def __init__(
        self,
        *,
        config: PublishConfig,
        spool: Spool,
        variables: Mapping[str, Any],
        write_tower: Callable[[str, Mapping[str, np.ndarray]], object],
        delivery: DeliverySupervisor,
        clock: Clock,
        is_stopping: Callable[[], bool] = lambda: False,
        grace_secs: float = 0.0,
        prepare: Callable[[], Callable[[], bool]] = lambda: lambda: False,
    ) -> None:
        self._config, self._spool, self._variables, self._write_tower = config, spool, variables, write_tower
        self._delivery, self._clock, self._prepare = delivery, clock, prepare
        self._is_stopping, self._grace_secs = is_stopping, grace_secs
        self._offer: tuple[int, Mapping[str, np.ndarray], Callable[[], bool]] | None = None
        self._offered, self._retry_at = 0.0, 0.0
        self._read_seconds = self._writing_seconds = 0.0  # Waited for input until the last offer; of the last record.
        self._lock = threading.Lock()
        self._ending, self._is_offered = threading.Event(), threading.Event()
        self._must_begin = False  # The target was lost, and needs all rows.
        self._times: dict[int, float] = {}  # When the rows of an epoch were taken.
        self._status: DeliveryStatus | None = None
        self._begun = time.time()
        self.failures, self._problem, self._seldom = 0, "", Seldom(_log, _REPEAT_SECONDS)
        self._thread = threading.Thread(target=self._run, name="publishing", daemon=True)

    def begin(self, session: tf1.Session, step: int) -> None:
        """Makes the first offer."""
        self._offer_values(session, step)
        self._thread.start()

    def after_step(self, session: tf1.Session, step: int) -> None:
        """Makes an offer if it is due, so that what is published next is new."""
        is_wanted = (self._offer is None or self._retry_at) and not self._waiting()
        if is_wanted and time.monotonic() >= self._offered + self._least_seconds():
            with self._clock.within("hooks"):
                self._offer_values(session, step)

    def finish(self, session: tf1.Session, step: int) -> None:
        """Makes the last offer, and waits until it is published and delivered; logs an error if that takes too long."""
        seconds = self._grace_secs / _SHARE_OF_GRACE if self._is_stopping() else _LAST_SECONDS
        self._offer_values(session, step)
        with self._clock.within("hooks"):
            deadline = time.monotonic() + seconds
            while (self._offer or self._must_begin or self._waiting()) and time.monotonic() < deadline:
                if self._must_begin and not self._offer:  # The target was lost after the last offer was written.
                    self._offer_values(session, step)
                self._ending.wait(_LOOK_SECONDS)
        if self._offer or self._must_begin or self._waiting():
            last, state = self._spool.last, "it has not been written yet"
            if last and not self._offer:
                state = f"step {last.global_step} is written, but not fully delivered"
            _log.error(
                "the end of the training was not published to %s within %.0f s: %s%s. The next training publishes all "
                "rows again",
                self._config.to,
                seconds,
                state,
                f"; {self._problem}" if self._problem else "",
            )

    def close(self) -> None:
        """Ends the thread and the delivery, even if they are not finished. Also called after an error."""
        self._ending.set()
        self._is_offered.set()
        self._spool.close()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        self._delivery.close()

    def results(self) -> dict[str, Any]:
        """Returns the figures of the publication for the training summary."""
        return {"publication": self._figures()}

    def status_line(self) -> str:
        """Returns a line for the log. Reads no file."""
        figures = {**self._figures(), "age_secs": f"{self._age_secs():.1f}"}
        named = "  ".join(f"{name}: {figures[name]}" for name in ("epochs", "rows", "removed", "waiting", "age_secs"))
        return f"[RunStatus]: Publication statistics => {named}"

    def _figures(self) -> dict[str, Any]:
        spool = self._spool
        return {
            "to": self._config.to,
            "epochs": spool.records,
            "rows": spool.rows,
            "removed": spool.removed,
            "global_step": spool.last.global_step if spool.last else None,
            "waiting": self._waiting(),
            "age_secs": round(self._age_secs(), 3),
            "failures": self.failures,
        }

    def _age_secs(self) -> float:
        """Returns the seconds since the delivered rows were taken, or since the training began if there are none."""
        served = self._spool.last.epoch - self._waiting() if self._spool.last else -1
        return max(time.time() - self._times.get(served, self._begun), 0.0)

    def _waiting(self) -> int:
        """Returns the number of written records that the last read status does not report as delivered."""
        if self._spool.last is None:
            return 0
        return self._spool.last.epoch - (self._status.epoch if self._status else -1)

    def _least_seconds(self) -> float:
        """Returns the least seconds from the last offer to the next."""
        waited = self._clock.seconds["read"] - self._read_seconds
        if waited > _SPARE_SHARE * (time.monotonic() - self._offered):
            return self._config.secs
        return max(self._config.secs, _TIMES * self._writing_seconds)

    def _offer_values(self, session: tf1.Session, step: int) -> None:
        is_preparing = self._prepare()
        values = session.run(self._variables)
        with self._lock:
            self._offer = step, values, is_preparing
        self._offered, self._read_seconds = time.monotonic(), self._clock.seconds["read"]
        self._is_offered.set()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._is_offered.wait(self._spool.look_seconds if self._waiting() else _LOOK_SECONDS)
            self._is_offered.clear()
            try:
                self._look()
            except Exception as error:  # An error in publishing never ends the training.
                if self._ending.is_set():
                    return
                self.failures += 1
                self._retry_at = time.monotonic() + max(self._config.secs, 1.0)
                if not isinstance(error, UserError | OSError):
                    _log.debug("publishing", exc_info=True)
                self._warn(f"not published: {error or type(error).__name__}")

    def _look(self) -> None:
        self._delivery.keep()
        self._status = status = self._spool.status()
        if status and status.needs_base and self._spool.last:
            _log.warning("publishing all rows again to %s: %s", self._config.to, status.problem)
            self._must_begin = True
            self._spool.begin()
            self._times, self._status = {}, None
        elif status and status.problem:
            self._warn(f"not delivered: {status.problem}")
        if self._waiting():
            age = self._age_secs()
            if age > max(_OLD_PERIODS * self._config.secs, _OLD_SECONDS):
                self._warn(f"a record waits to be delivered; the rows there are {age:.0f} s old")
            return
        with self._lock:
            offer = self._offer
        if offer is None or time.monotonic() < self._retry_at:
            return
        step, values, is_preparing = offer
        while is_preparing() and not self._ending.wait(_PREPARING_SECONDS):
            pass
        if wrong := _first_not_finite(values):
            self.failures += 1
            self._warn(f"step {step} is not published: {diverged(f'the variable {wrong} is not finite')}")
        else:
            self._publish(step, values)
        self._must_begin = False
        with self._lock:
            if self._offer is offer:
                self._offer = None

    def _publish(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        begun, is_first = time.monotonic(), self._spool.last is None
        record = self._spool.write(step, lambda path: self._write_tower(path, values))
        self._times[record.epoch] = record.time
        self._times.pop(record.epoch - 3, None)
        self._retry_at, self._problem = 0.0, ""
        log = _log.info if is_first else _log.debug
        seconds = time.monotonic() - begun
        self._writing_seconds = 0.0 if is_first else seconds  # All rows take much longer than the changes.
        log("published %s %d of step %d: %d rows, %.1f s", record.kind, record.epoch, step, record.rows, seconds)

    def _warn(self, text: str) -> None:
        self._problem = text
        self._seldom.warning(
            "%s: %s; the training continues, and later epochs contain all changes", self._config.to, text
        )


def _first_not_finite(values: Mapping[str, np.ndarray]) -> str:
    """Returns the name of the first variable that has an infinity or a NaN; "" if there is none."""
    for name, value in values.items():
        array = np.asarray(value)
        if array.dtype.kind not in "OSUbiu" and not np.isfinite(array).all():
            return name
    return ""
