"""Delivers a spool, the publication that a training run writes, to its target, in a supervised process."""

import contextlib
import dataclasses
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.cluster import is_cluster
from ctr_trainer.live.publication.places import Target
from ctr_trainer.live.publication.records import BASE, EPOCH, Place, Record
from ctr_trainer.live.publication.spool import DeliveryStatus, NeedsBase, write_status
from ctr_trainer.settings.training_configs import RedisFiles
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages import log_lines
from ctr_trainer.system.messages.errors import Lost, UserError
from ctr_trainer.system.processes.child import Child
from ctr_trainer.system.processes.waiting import Background

_log = logging.getLogger(__name__)
_RESTART_SECONDS = 10.0
_LOOK_SECONDS, _RETRY_SECONDS, _TIDY_SECONDS, _CLOSE_SECONDS = 0.2, 3.0, 10.0, 5.0
_REPEAT_SECONDS = 60.0  # A problem is logged again after this time.


class DeliverySupervisor:
    """Starts the delivery process, and restarts it when it ends, at most every 10 s."""

    def __init__(self, start: Callable[[], Child], clock: Callable[[], float] = time.monotonic) -> None:
        self._start, self._clock = start, clock
        self._process: Child | None = None
        self._started = -_RESTART_SECONDS

    def keep(self) -> None:
        """Starts or restarts the process when it is due. Must be called regularly."""
        if self._process is not None and (ended := self._process.ended()) is not None:
            _log.error("the process that delivers the publication has ended and is restarted: %s", ended)
            self.close()
        if self._process is None and self._clock() >= self._started + _RESTART_SECONDS:
            self._process, self._started = self._start(), self._clock()

    def close(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None


def start_delivery(
    spool: Place, to: str, redis: RedisFiles, log_file: str | os.PathLike, cores: set[int] | None = None
) -> Child:
    """Runs `publish --input=SPOOL --to=URL` in a child process, on the given cores or all cores of this process."""
    flags = [f"--{name}={value}" for name, value in dataclasses.asdict(redis).items() if value]
    command = [sys.executable, "-m", "ctr_trainer", "publish", f"--input={spool}", f"--to={to}"]
    return Child([*command, *flags, f"--log_format={log_lines.installed_form()}"], log_file, cores)


def deliver(spool: Place, to: str, open_target: Callable[[], Target], ended: threading.Event) -> None:
    """Delivers records as they are written, until `ended` is set. Logs each problem and retries.

    `open_target`: f() -> the target; may raise UserError while another process publishes there.

    Raises UserError: the spool is the target, or another process delivers it, which may be to another target.
    """
    if not is_cluster(to) and path_of(spool).absolute() == path_of(to).absolute():
        raise UserError(f"{to} is the spool of the training itself: name another place to publish to")
    seldom, tidied = log_lines.Seldom(_log, _REPEAT_SECONDS), time.monotonic()
    following = records.record_path(spool, 0, EPOCH, 0)  # The path of the record after the last one; now of none.
    tidying = Background(f"the removal of old records of {to}")
    path_of(spool).mkdir(parents=True, exist_ok=True)
    lease = (path_of(spool) / ".delivery").hold(
        lambda holder: f"{spool}: {holder} delivers it already; a training that runs delivers its spool itself"
    )
    with contextlib.closing(lease), contextlib.closing(Delivery(spool, open_target)) as delivery:
        while not ended.is_set():
            lease.check()
            began = time.monotonic()
            try:
                record = delivery.step()
            except (OSError, UserError) as error:
                seldom.warning("not delivered to %s: %s; retried, and the training continues", to, error)
                ended.wait(_RETRY_SECONDS)
                continue
            if record is not None:
                following = records.record_path(spool, record.generation, EPOCH, record.epoch + 1)
                _log.info(
                    "delivered %s %d of step %d to %s: %d rows, %d removed, %.2f s; its rows are %.2f s old",
                    record.kind,
                    record.epoch,
                    record.global_step,
                    to,
                    record.rows,
                    record.removed,
                    time.monotonic() - began,
                    time.time() - record.time,
                )
                continue
            if not tidying.is_busy and began > tidied + _TIDY_SECONDS:
                tidying.start(delivery.tidy)
                tidied = began
            records.await_record(following, _LOOK_SECONDS, ended)
        with contextlib.suppress(Lost):  # An unfinished compaction leaves files without a record.
            tidying.close(_CLOSE_SECONDS)


class Delivery:
    """Delivers records one by one, in order, and removes from the spool all records before the last delivered one.

    Only the target keeps the progress: a new process continues after the target's newest record. If a process is killed
    while it delivers a record, the record is either complete at the target or delivered again.

    `open_target`: f() -> the target, called when the spool has a publication.
    """

    def __init__(self, spool: Place, open_target: Callable[[], Target]) -> None:
        self._spool, self._open_target = str(spool), open_target
        self._target: Target | None = None
        self._status: DeliveryStatus | None = None

    def step(self) -> Record | None:
        """Delivers the next record and returns it, or returns None if no further record is written yet.

        Raises:
          UserError: the target refuses the record, or the spool lacks it. `DeliveryStatus.problem` has the same text.
        """
        generation, names = records.find_current(self._spool)
        if not names:
            return None
        status = self._status
        if status is None or status.generation != generation:
            status = DeliveryStatus(generation)
        try:
            self._target = target = self._target or self._open_target()
            epoch = target.newest_epoch(records.read_record(self._spool, generation, *names[-1]).holder)
            status = DeliveryStatus(generation, -1 if epoch is None else epoch)
            record = self._next(generation, names, epoch)
            if record is not None:
                records.check_files(self._spool, record)
                target.deliver(record, records.generation_path(self._spool, generation))
        except (OSError, UserError) as error:
            needs_base = isinstance(error, NeedsBase)
            self._write(dataclasses.replace(status, problem=str(error), needs_base=needs_base))
            raise
        if record is None:
            self._write(status)
            return None
        self._write(DeliveryStatus(generation, record.epoch))
        records.remove_generations_before(self._spool, generation)
        records.remove_before(self._spool, generation, record.kind, record.epoch)
        return record

    def tidy(self) -> None:
        """Removes data that readers of the target no longer need. Takes as long as that takes, and logs errors."""
        try:
            if self._target is not None:
                self._target.tidy()
        except (OSError, UserError) as error:
            _log.warning("old records were not removed, and the target grows: %s", error)

    def close(self) -> None:
        if self._target is not None:
            self._target.close()

    def _next(self, generation: int, names: list[tuple[str, int]], delivered: int | None) -> Record | None:
        """Returns the record after the target's newest epoch, None for none; returns None if it is not written yet."""
        kind, epoch = (BASE, records.newest_base(names)) if delivered is None else (EPOCH, delivered + 1)
        if epoch is not None and (kind, epoch) in names:
            return records.read_record(self._spool, generation, kind, epoch)
        if any(number > (-1 if delivered is None else delivered) for _, number in names):
            lacks = f"epoch {epoch}, which follows the last delivered epoch"
            if delivered is None:
                lacks = "base any more, and the target has another generation or none"
            raise NeedsBase(f"the spool {self._spool} has no {lacks}: all rows must be published again")
        return None

    def _write(self, status: DeliveryStatus) -> None:
        if status != self._status:
            write_status(self._spool, status)
            self._status = status
