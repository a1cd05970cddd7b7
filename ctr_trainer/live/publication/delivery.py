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
from ctr_trainer.live.publication.records import BASE, EPOCH, Place, Publication, Record
from ctr_trainer.live.publication.spool import DeliveryStatus, NeedsBase, read_status, write_status
from ctr_trainer.settings.training_configs import RedisFiles
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages import log_lines
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes.child import Child

_log = logging.getLogger(__name__)
_FIRST_SECONDS, _MOST_SECONDS = 1.0, 60.0
_LOOK_SECONDS = 0.2
_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS = 0.5, 30.0
_REPEAT_SECONDS = 60.0  # A persistent problem is logged again after this time.


class DeliverySupervisor:
    """Starts the delivery process. Restarts it when it ends, after a pause that doubles up to a minute."""

    def __init__(self, start: Callable[[], Child], clock: Callable[[], float] = time.monotonic) -> None:
        self._start, self._clock = start, clock
        self._process: Child | None = None
        self._start_at, self._started, self._wait = 0.0, 0.0, _FIRST_SECONDS

    def keep(self) -> None:
        """Starts or restarts the process when it is due. Must be called regularly."""
        if self._process is None:
            if self._clock() >= self._start_at:
                self._process, self._started = self._start(), self._clock()
            return
        ended = self._process.ended()
        if ended is None:
            return
        self._process.stop()
        if self._clock() - self._started > _MOST_SECONDS:
            self._wait = _FIRST_SECONDS
        _log.error(
            "the process that delivers the publication has ended: %s\nIt is restarted in %.0f s", ended, self._wait
        )
        self._process, self._start_at = None, self._clock() + self._wait
        self._wait = min(2 * self._wait, _MOST_SECONDS)

    def close(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None


class DeliveryProcess(Child):
    """Runs `publish --input=SPOOL --to=URL` in a child process, which ends when this process ends or is killed.

    A context manager that stops the child at its end. The child appends its output to the log file, and uses the given
    cores or all cores of this process. `read_status` reports its progress.
    """

    def __init__(
        self, spool: Place, to: str, redis: RedisFiles, log_file: str | os.PathLike, cores: set[int] | None = None
    ) -> None:
        flags = [f"--{name}={value}" for name, value in dataclasses.asdict(redis).items() if value]
        command = [sys.executable, "-m", "ctr_trainer", "publish", f"--input={spool}", f"--to={to}"]
        super().__init__([*command, *flags, f"--log_format={log_lines.installed_form()}"], log_file, cores)


def deliver(spool: Place, to: str, open_target: Callable[[], Target], ended: threading.Event) -> None:
    """Delivers records as they are written, until `ended` is set. Logs each problem and retries.

    Args:
      open_target: f() -> the target; may raise UserError while another process publishes there.

    Raises:
      UserError: the spool is the target.
    """
    if not is_cluster(to) and path_of(spool).absolute() == path_of(to).absolute():
        raise UserError(f"{to} is the spool of the training itself: name another place to publish to")
    problems = _ProblemLog()
    target: Target | None = None
    delivery: Delivery | None = None
    with contextlib.ExitStack() as stack:
        while not ended.is_set():
            try:
                target = target or stack.enter_context(contextlib.closing(open_target()))
                delivery = delivery or Delivery(spool, target)
                began = time.monotonic()
                record = delivery.step()
                problems.succeeded()
                if record is None:
                    target.tidy()
                    ended.wait(_LOOK_SECONDS)
                    continue
            except UserError as error:
                delivery = None
                if target is None:
                    _report(spool, str(error))
                problems.failed(f"not delivered to {to}: {error}")
                ended.wait(problems.wait_seconds)
                continue
            _log.info(
                "delivered %s %d of step %d to %s: %d rows, %d removed, %.1f s; its rows are %.1f s old",
                record.kind,
                record.epoch,
                record.global_step,
                to,
                record.rows,
                record.removed,
                time.monotonic() - began,
                time.time() - record.time,
            )


def _report(spool: Place, problem: str) -> None:
    """Reports to the training, through the spool, why the target cannot be opened."""
    publication, status = records.read_publication(spool), read_status(spool)
    if publication is None:
        return
    if status is None or status.holder != publication.holder:
        status = DeliveryStatus(publication.holder)
    write_status(spool, dataclasses.replace(status, problem=problem))


class _ProblemLog:
    """Logs a problem once, then every minute while it lasts.

    Attributes:
      wait_seconds: pause before the next try; doubles while the problem is the same.
    """

    def __init__(self) -> None:
        self._text, self._time = "", 0.0
        self.wait_seconds = _FIRST_RETRY_SECONDS

    def failed(self, text: str) -> None:
        same = text == self._text
        self.wait_seconds = min(self.wait_seconds * 2, _MOST_RETRY_SECONDS) if same else _FIRST_RETRY_SECONDS
        if not same or time.monotonic() > self._time + _REPEAT_SECONDS:
            _log.warning("%s; the delivery is retried, and the training continues", text)
            self._text, self._time = text, time.monotonic()

    def succeeded(self) -> None:
        if self._text:
            _log.info("records are delivered again")
        self._text, self.wait_seconds = "", _FIRST_RETRY_SECONDS


class Delivery:
    """Delivers records one by one, in order, and removes from the spool all records before the last delivered one.

    Only the target keeps the progress: a new process continues after the target's newest record. If a process is killed
    while it delivers a record, the record is either complete at the target or delivered again.
    """

    def __init__(self, spool: Place, target: Target) -> None:
        self._spool, self._target = str(spool), target
        self._status: DeliveryStatus | None = None

    def step(self) -> Record | None:
        """Delivers the next record and returns it, or returns None if no further record is written yet.

        Raises:
          UserError: the target refuses the record, or the spool lacks it. `DeliveryStatus.problem` has the same text.
        """
        publication = records.read_publication(self._spool)
        if publication is None:
            return None
        status = self._status
        if status is None or status.holder != publication.holder:
            status = self._status = DeliveryStatus(publication.holder)
        try:
            record = self._next(publication, status)
            if record is not None:
                records.check_files(self._spool, record)
                directory = records.generation_path(self._spool, record.generation)
                self._target.deliver(publication.holder, record, directory)
        except (OSError, UserError) as error:
            needs_base = isinstance(error, NeedsBase)
            self._write(dataclasses.replace(self._status or status, problem=str(error), needs_base=needs_base))
            raise
        if record is not None:
            self._write(DeliveryStatus(publication.holder, record.epoch))
            records.remove_generations_before(self._spool, record.generation)
            records.remove_before(self._spool, record)
        return record

    def _next(self, publication: Publication, status: DeliveryStatus) -> Record | None:
        """Returns the record after the target's newest one; None if it is not written yet."""
        generation = publication.generation
        names = records.list_records(self._spool, generation)
        epoch = self._target.newest_epoch(publication.holder)
        if epoch is None:
            base = records.newest_base(names)
            if base is None and names:
                raise NeedsBase(
                    f"the spool {self._spool} no longer has a base, and the target has another generation or none: all "
                    "rows must be published again"
                )
            return None if base is None else records.read_record(self._spool, generation, BASE, base)
        if epoch != status.epoch:
            self._write(DeliveryStatus(publication.holder, epoch))
        if (EPOCH, epoch + 1) in names:
            return records.read_record(self._spool, generation, EPOCH, epoch + 1)
        if any(number > epoch for _, number in names):
            raise NeedsBase(
                f"the spool {self._spool} has no epoch {epoch + 1}, which follows the last delivered epoch: all rows "
                "must be published again"
            )
        return None

    def _write(self, status: DeliveryStatus) -> None:
        if status != self._status:
            self._status = status
            write_status(self._spool, status)
