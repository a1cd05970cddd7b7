"""The pieces that a reader reads at once: rows of a buffer, shuffled."""

import dataclasses

from ctr_trainer.data import plan
from ctr_trainer.data.rows import Rows


@dataclasses.dataclass(frozen=True)
class Place:
    """Rows [start, stop) of a buffer in the order of an epoch; start and stop count from the buffer's beginning."""

    epoch: int
    buffer: plan.Buffer
    start: int
    stop: int


def places(order, epoch, share):
    """Yields the Places of a worker's share of an epoch, in order. A share without rows has one Place without rows.

    Args:
      order: plan.RowOrder.
      epoch: number of the epoch.
      share: list of ranges [start, stop) of the epoch's order.
    """
    if not share:  # All batches of this worker are padding; the Place without rows gives the padding its shape.
        yield Place(epoch, plan.Buffer(0, 0, 0, groups=(0,)), 0, 0)
    for buffer, start, stop in order.pieces(epoch, share):
        yield Place(epoch, buffer, start, stop)


class PieceReader:
    """Reads pieces, in one thread.

    Args:
      groups: RowGroups that no other thread uses; `close` closes them.
      order: plan.RowOrder of all rows.
    """

    def __init__(self, groups, order):
        self._groups, self._order = groups, order

    def __call__(self, place: Place | None) -> Rows | None:
        """Returns the Rows of a Place; None for None, which marks the end of an epoch.

        Raises:
          UserError: a file is gone or has changed.
        """
        if place is None:
            return None
        rows = self._groups.read(place.buffer.groups)
        order = self._order.permutation(place.epoch, place.buffer)
        start, stop = place.start, place.stop
        return rows.slice(start, stop) if order is None else rows.take(order[start:stop])

    def close(self):
        """Closes the files."""
        self._groups.close()
