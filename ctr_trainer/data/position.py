"""The position of all workers in the data, from which a run goes on after a checkpoint."""

import dataclasses

from ctr_trainer.data import plan
from ctr_trainer.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class Position:
    """The epoch and, per worker, the ranges of the epoch's order that the worker has yet to read.

    The end of an epoch is the beginning of the next epoch, with whole shares.
    """

    epoch: int
    shares: list

    @staticmethod
    def beginning(epoch, rows, workers):
        """-> the position before the epoch's first row."""
        return Position(epoch, plan.even_shares([[0, rows]], workers))

    @staticmethod
    def restore(values, order, workers):
        """Makes a position from what `to_dict` returned. Cuts new shares if the number of workers differs.

        Raises:
          UserError: the position belongs to other data or to another order of the rows; the message names what differs.
        """
        if not isinstance(values, dict) or not {"epoch", "shares", "order"} <= values.keys():
            raise UserError(f"reader position {values!r}: expected the keys epoch, shares and order")
        here = _order(order)
        there = {
            "files": here["files"],
            **values["order"],
        }  # Checkpoints of earlier versions do not describe the files.
        for name, value in here.items():
            if there.get(name) != value:
                raise UserError(
                    f"reader position: it was saved with {name} = {there.get(name)}, and now {name} = {value}, so the "
                    "rows come in another order, and some would be read twice and others never. Resume with the data "
                    "and the settings that the checkpoint was saved with"
                )
        shares = values["shares"]
        if len(shares) != workers:
            shares = plan.even_shares([r for share in shares for r in share], workers)
        return Position(values["epoch"], shares)

    def to_dict(self, order):
        """-> JSON-able."""
        return dict(epoch=self.epoch, shares=self.shares, order=_order(order))

    def after(self, steps, batch_size, rows):
        """-> the position after `steps` further batches."""
        here = self
        while steps and steps >= (left := plan.steps(here.shares, batch_size)):
            if not rows:
                return here
            steps -= left
            here = Position.beginning(here.epoch + 1, rows, len(here.shares))
        return Position(here.epoch, [plan.advance(share, steps * batch_size) for share in here.shares])


def progress(values):
    """-> (number of epochs that all workers together have read, a float; number of workers); None if not known.

    Args:
      values: what `Position.to_dict` returned. For None, or the position of another kind of reader, nothing is known.
    """
    if not isinstance(values, dict) or not {"epoch", "shares", "order"} <= values.keys():
        return None
    left = sum(stop - start for share in values["shares"] for start, stop in share)
    return values["epoch"] + 1 - left / values["order"]["rows"], len(values["shares"])


def _order(order):
    return dict(
        rows=order.rows,
        shuffle=order.shuffle,
        seed=order.seed,
        shuffle_buffer=order.shuffle_buffer,
        files=order.files,
    )
