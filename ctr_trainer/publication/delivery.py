"""Carries a spool, the publication that a training writes, to its target."""

import dataclasses
import logging
import time

from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication import old_records, records
from ctr_trainer.publication.delivered import Delivered, NeedsBase, write_delivered
from ctr_trainer.publication.records import BASE, EPOCH

_log = logging.getLogger(__name__)


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
            self._delivered = Delivered(publication.holder)
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
            self._say(Delivered(publication.holder, record.epoch, time.time()))
            # It stays itself: the next tower may be made of its tower.
            old_records.remove_generations_before(self._spool, record.generation)
            old_records.remove_before(self._spool, record)
        return record

    def _next(self, publication):
        """-> the `Record` after the one that the target has; None if it is not written yet."""
        generation = publication.generation
        names = records.list_records(self._spool, generation)
        epoch = self._target.delivered(publication.holder)
        if epoch is None:
            base = records.newest_base(names)
            if base is None and names:
                raise NeedsBase(
                    f"the spool {self._spool} has no base any more, and the target has another generation since, or "
                    "none: all rows are to be published anew"
                )
            return None if base is None else records.read_record(self._spool, generation, BASE, base)
        if epoch != self._delivered.epoch:
            self._say(Delivered(publication.holder, epoch, time.time()))
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
            write_delivered(self._spool, delivered)
