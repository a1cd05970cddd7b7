"""The requests of a service that read and change rows, see `wire`."""

import contextlib

from ctr_trainer.embedding.service import wire
from ctr_trainer.embedding.store.row_codec import find_codec

# The requests that need the lease.
_WRITES = ("push", "put", "sync")


class RowRequests:
    """Answers row requests from a store.

    Args:
      store: `LocalStore`.
      columns: `ReceivedColumns`, what clients of this host leave in memory.
      metrics: `ServiceMetrics`, which counts the requests.
      leases: `LeaseBook`; a request that changes rows needs the lease.
      incarnation: `Incarnation`; no request meets rows that are being replaced, or others than it expects.

    Attributes:
      names: the names of these requests.
    """

    def __init__(self, store, columns, metrics, leases, incarnation):
        self._store, self._columns, self._metrics = store, columns, metrics
        self._leases, self._incarnation = leases, incarnation
        self._answers = {
            "pull": self._pull,
            "pull_newer": self._pull_newer,
            "push": self._push,
            "put": self._put,
            "sync": self._sync,
        }
        self.names = tuple(self._answers)

    def answer(self, op, body):
        """-> the results of a request.

        Args:
          op: one of `names`.
          body: buffer with the request.
        """
        header, start = wire.unpack_header(body)
        if "memory" in header:
            body, start = self._columns.read(str(header["memory"]), int(header["bytes"])), 0
        self._incarnation.check(header.get("incarnation"))
        table, count = header["table"], header["count"]
        width = self._store.config(table).width
        if op in _WRITES:
            self._leases.renew(header.get("lease"), op)

        def columns(layout):
            return wire.unpack_columns(body, start, table, count, layout)

        return self._answers[op](header, columns, width)

    def _pull(self, request, columns, width):
        (keys,) = columns(wire.pull_layout())
        wire.refuse_long_answer(request["table"], len(keys), width)
        with self._at_work("pull", request):
            rows = self._store.pull(request["table"], keys, request["missing"])
        return wire.rows_answer(rows)

    def _pull_newer(self, request, columns, width):
        codec = find_codec(str(request["codec"]))
        keys, versions = columns(wire.pull_newer_layout())
        wire.refuse_long_answer(request["table"], len(keys), width, codec)
        with self._at_work("pull_newer", request):
            newer = self._store.pull_newer(request["table"], keys, versions, codec)
        return wire.newer_answer(newer)

    def _push(self, request, columns, width):
        keys, deltas = columns(wire.push_layout(width))
        with self._at_work("push", request, pusher := _pusher(request)):
            self._store.push(request["table"], keys, deltas, *pusher)
        return wire.receipt(len(keys))

    def _put(self, request, columns, width):
        keys, rows = columns(wire.push_layout(width))
        with self._at_work("put", request, pusher := _pusher(request)):
            self._store.put(request["table"], keys, rows, *pusher)
        return wire.receipt(len(keys))

    def _sync(self, request, columns, width):
        codec = find_codec(str(request["codec"]))
        keys, versions, deltas = columns(wire.sync_layout(width, codec))
        with self._at_work("sync", request, pusher := _pusher(request)):
            newer = self._store.sync(request["table"], keys, deltas, *pusher, versions, codec)
        return wire.newer_answer(newer)

    @contextlib.contextmanager
    def _at_work(self, op, request, pusher=(None, None)):
        """Counts a request while the store works on it, and keeps the rows from being replaced meanwhile."""
        with self._metrics.measure(op, request["table"], request["count"], pusher[0]):
            with self._incarnation.within(request.get("incarnation")):
                yield


def _pusher(request):
    """-> (name of the worker that pushes, sequence number of the push)."""
    return str(request["worker"]), int(request["sequence"])
