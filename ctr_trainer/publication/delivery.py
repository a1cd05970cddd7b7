"""Carries a spool, the publication that a training writes, to its target."""

import dataclasses
import logging
import sys
import threading
import time

from ctr_trainer.files.paths import path_of
from ctr_trainer.messages import log_lines
from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes.child import Child
from ctr_trainer.publication import records
from ctr_trainer.publication.cluster import is_cluster
from ctr_trainer.publication.records import BASE, EPOCH
from ctr_trainer.publication.spool import DeliveryStatus, NeedsBase, read_status, write_status

_log = logging.getLogger(__name__)
_FIRST_SECONDS, _MOST_SECONDS = 1.0, 60.0
_LOOK_SECONDS = 0.2
_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS = 0.5, 30.0
_REPEAT_SECONDS = 60.0  # A problem that stays is logged again after so long.


class DeliverySupervisor:
    """Starts the process, and starts it again if it ends, after a while that grows.

    Args:
      start: f() -> `DeliveryProcess`.
      clock: f() -> seconds.
    """

    def __init__(self, start, clock=time.monotonic):
        self._start, self._clock = start, clock
        self._process, self._start_at, self._wait = None, 0.0, _FIRST_SECONDS
        self._started = 0.0

    def keep(self):
        """Looks after the process; to be called now and then."""
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
        _log.error("the delivery of the publication has ended: %s\nStarting it again in %.0f s", ended, self._wait)
        self._process, self._start_at = None, self._clock() + self._wait
        self._wait = min(2 * self._wait, _MOST_SECONDS)

    def close(self):
        """Ends the process."""
        if self._process is not None:
            self._process.stop()
            self._process = None


class DeliveryProcess(Child):
    """`publish --input=SPOOL --to=URL` in a child process, which ends when this process ends, however it ends.

    A context manager: leaving it stops the process. What it has delivered stands in the spool: `read_status`.

    Args:
      spool: path or URL of the publication that the training writes.
      to: URL of the target.
      redis: `RedisFiles` of a cluster.
      log_file: where its output goes, appended.
      cores: that it may use; None for those of this process.
    """

    def __init__(self, spool, to, redis, log_file, cores=None):
        flags = [f"--{name}={value}" for name, value in dataclasses.asdict(redis).items() if value]
        command = [sys.executable, "-m", "ctr_trainer", "publish", f"--input={spool}", f"--to={to}"]
        super().__init__([*command, *flags, f"--log_format={log_lines.installed_form()}"], log_file, cores)


def deliver(spool, to, open_target, ended=None):
    """Delivers records as they come, until it is told to end. What fails is said, and tried again.

    Args:
      spool: path or URL of the publication that a training writes.
      to: what the target is called in the log.
      open_target: f() -> the `Target`; it may refuse at first, while another process publishes there.
      ended: `threading.Event` that ends this; None for never.

    Raises:
      UserError: the spool is the target.
    """
    ended = ended or threading.Event()
    if not is_cluster(to) and path_of(spool).absolute() == path_of(to).absolute():
        raise UserError(f"{to} is the spool of the training itself: name another place to publish to")
    said, target = _Said(), None
    try:
        while not ended.is_set():
            try:
                target = target or open_target()
                delivery = Delivery(spool, target)
                _deliver_while_records_come(delivery, target, to, ended, said)
            except UserError as error:
                if target is None:
                    _tell(spool, str(error))
                said.problem(f"not delivered to {to}: {error}")
                ended.wait(said.wait_seconds)
    finally:
        if target is not None:
            target.close()


def _tell(spool, problem):
    """Tells the training, in its spool, why there is no target."""
    publication, delivered = records.read_publication(spool), read_status(spool)
    if publication is None:
        return
    if delivered is None or delivered.holder != publication.holder:
        delivered = DeliveryStatus(publication.holder)
    write_status(spool, dataclasses.replace(delivered, problem=problem))


def _deliver_while_records_come(delivery, target, to, ended, said):
    while not ended.is_set():
        began = time.monotonic()
        record = delivery.step()
        said.success()
        if record is None:
            target.tidy()
            ended.wait(_LOOK_SECONDS)
            continue
        _log.info(
            "delivered %s %d of step %d to %s: %d rows, %d removed, %.1f s; its rows are %.1f s old",
            *(record.kind, record.epoch, record.global_step, to, record.rows, record.removed),
            *(time.monotonic() - began, time.time() - record.time),
        )


class _Said:
    """Logs a problem once, and now and then while it stays; waits longer each time.

    Attributes:
      wait_seconds: until the next try.
    """

    def __init__(self):
        self._text, self._time = "", 0.0
        self.wait_seconds = _FIRST_RETRY_SECONDS

    def problem(self, text):
        """Takes what is wrong."""
        same = text == self._text
        self.wait_seconds = min(self.wait_seconds * 2, _MOST_RETRY_SECONDS) if same else _FIRST_RETRY_SECONDS
        if not same or time.monotonic() > self._time + _REPEAT_SECONDS:
            _log.warning("%s; it is tried again, and the training goes on", text)
            self._text, self._time = text, time.monotonic()

    def success(self):
        """Takes that it works."""
        if self._text:
            _log.info("delivered again")
        self._text, self.wait_seconds = "", _FIRST_RETRY_SECONDS


class Delivery:
    """Delivers one record after the other, in order, and removes from the spool what was delivered before the last one.

    It keeps nothing in mind: a new process goes on from what the target says. So one that is killed anywhere leaves a
    record that is delivered or one that is put again.

    Args:
      spool: path or URL of the publication that a training writes.
      target: `Target`.
    """

    def __init__(self, spool, target):
        self._spool, self._target = str(spool), target
        self._delivered = None

    def step(self):
        """Delivers the next record. -> its `Record`; None if there is none yet

        Raises:
          UserError: the target does not take it, or the spool does not have it; `delivered.json` says so too.
        """
        publication = records.read_publication(self._spool)
        if publication is None:
            return None
        if self._delivered is None or self._delivered.holder != publication.holder:
            self._delivered = DeliveryStatus(publication.holder)
        try:
            record = self._next(publication)
            if record is not None:
                records.check_files(self._spool, record)
                directory = records.generation_path(self._spool, record.generation)
                self._target.deliver(publication.holder, record, directory)
        except (OSError, UserError) as error:
            needs_base = isinstance(error, NeedsBase)
            self._say(dataclasses.replace(self._delivered, problem=str(error), needs_base=needs_base))
            raise
        if record is not None:
            self._say(DeliveryStatus(publication.holder, record.epoch, time.time()))
            # It stays itself: the next tower may be made of its tower.
            records.remove_generations_before(self._spool, record.generation)
            records.remove_before(self._spool, record)
        return record

    def _next(self, publication):
        """-> the `Record` after the one that the target has; None if it is not written yet."""
        generation = publication.generation
        names = records.list_records(self._spool, generation)
        epoch = self._target.newest_epoch(publication.holder)
        if epoch is None:
            base = records.newest_base(names)
            if base is None and names:
                raise NeedsBase(
                    f"the spool {self._spool} has no base any more, and the target has another generation since, or "
                    "none: all rows are to be published anew"
                )
            return None if base is None else records.read_record(self._spool, generation, BASE, base)
        if epoch != self._delivered.epoch:
            self._say(DeliveryStatus(publication.holder, epoch, time.time()))
        if (EPOCH, epoch + 1) in names:
            return records.read_record(self._spool, generation, EPOCH, epoch + 1)
        if any(number > epoch for _, number in names):
            raise NeedsBase(
                f"the spool {self._spool} has no epoch {epoch + 1}, which follows the last one that was delivered: all "
                "rows are to be published anew"
            )
        return None

    def _say(self, delivered):
        if delivered != self._delivered:
            self._delivered = delivered
            write_status(self._spool, delivered)
