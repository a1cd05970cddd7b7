"""A store that lets its worker go on for a while after the service is lost."""

import logging

import numpy as np

from ctr_trainer.embedding.store.row_codec import PLAIN
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.versions import ChangedRows
from ctr_trainer.messages.errors import ServiceLost

_log = logging.getLogger(__name__)


class Guard(Store):
    """A Store that answers in place of a service that is lost, so that the worker reaches the next step.

    If one worker left the training loop alone, the others would wait in a collective that it never reaches. So it goes
    on to the next point at which all workers ask each other whether one has lost the service; there all workers go back
    to the last checkpoint. What the worker trains until then is thrown away: a pull finds no newer row, and a push does
    nothing.

    Only the requests of the training loop are guarded; `create_table`, `restore` and the like raise their errors.
    """

    is_guarded = True

    def __init__(self, store):
        self._store, self.host_memory = store, store.host_memory
        self._widths = {}
        self.lost = None

    def create_table(self, config):
        self._store.create_table(config)
        self._widths[config.name] = config.width

    def pull(self, table, keys, missing="initial"):
        rows = self._guarded(self._store.pull, table, keys, missing)
        return np.zeros((len(keys), self._widths[table]), np.float32) if rows is None else rows

    def pull_newer(self, table, keys, versions, codec=PLAIN):
        newer = self._guarded(self._store.pull_newer, table, keys, versions, codec)
        return self._nothing_newer(table, versions, codec) if newer is None else newer

    def push(self, table, keys, deltas, worker, sequence):
        self._guarded(self._store.push, table, keys, deltas, worker, sequence)

    def put(self, table, keys, rows, worker, sequence):
        self._guarded(self._store.put, table, keys, rows, worker, sequence)

    def sync(self, table, keys, deltas, worker, sequence, versions=None, codec=PLAIN):
        newer = self._guarded(self._store.sync, table, keys, deltas, worker, sequence, versions, codec)
        if newer is not None:
            return newer
        known = np.zeros(len(keys), np.uint32) if versions is None else versions
        return self._nothing_newer(table, known, codec)

    def advance(self, step):
        self._guarded(self._store.advance, step)

    def save(self, path, step, since=None):
        """Writes every table, as `Store.save`. -> [] if the service is lost"""
        return self.begin_save(path, step, since)()

    def begin_save(self, path, step, since=None):
        finish = self._guarded(self._store.begin_save, path, step, since)
        return lambda: (self._guarded(finish) if finish else None) or []

    def publish(self, path, epoch, dtype, after=None):
        return self._store.publish(path, epoch, dtype, after)

    def restore(self, path, files):
        self._store.restore(path, files)

    def clear(self):
        self._store.clear()

    def reopen(self):
        self._store.reopen()

    def look(self):
        self._guarded(self._store.look)

    def stats(self):
        return self._store.stats()

    @property
    def silent_seconds(self):
        return self._store.silent_seconds

    def close(self):
        self._store.close()

    def _guarded(self, call, *arguments):
        """-> what the call returns; None if the service is lost."""
        if self.lost is None:
            try:
                return call(*arguments)
            except ServiceLost as error:
                self.lost = error
                _log.error("%s; going on to the next point at which all workers can go back", error)
        return None

    def _nothing_newer(self, table, versions, codec):
        rows = np.empty((0, self._widths[table]), np.float32)
        return ChangedRows(versions.copy(), np.empty(0, np.int64), rows).encoded(codec)
