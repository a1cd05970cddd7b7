"""Delivers a spool for as long as its training publishes."""

import dataclasses
import logging
import threading
import time

from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication import records
from ctr_trainer.publication.cluster import is_cluster
from ctr_trainer.publication.delivered import Delivered, read_delivered, write_delivered
from ctr_trainer.publication.delivery import Delivery

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS = 0.5, 30.0
_REPEAT_SECONDS = 60.0  # A problem that stays is logged again after so long.


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
                _deliver_all(delivery, target, to, ended, said)
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
    publication, delivered = records.read_publication(spool), read_delivered(spool)
    if publication is None:
        return
    if delivered is None or delivered.holder != publication.holder:
        delivered = Delivered(publication.holder)
    write_delivered(spool, dataclasses.replace(delivered, problem=problem))


def _deliver_all(delivery, target, to, ended, said):
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
