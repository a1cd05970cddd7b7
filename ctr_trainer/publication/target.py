"""Where a publication is delivered to."""

from typing import Protocol

from ctr_trainer.messages.errors import UserError


def refuse_other_model(place: str, there: str, comes: str, marker: str) -> None:
    """Refuses a model at a place that has the publication of another one.

    Args:
      place: its URL, for the message.
      there, comes: the names of the models; "" if one is not known.
      marker: what to delete so that the place is free.

    Raises:
      UserError: the names differ.
    """
    if there and comes and there != comes:
        raise UserError(
            f"{place}: the model {there!r} is published there, and servers read it; this is {comes!r}. Publish it to "
            f"another place; to replace {there!r}, delete {marker} first"
        )


class Target(Protocol):
    """A place that readers look at; `open_target` makes one, which holds the fence of the place until `close`.

    While one process holds the fence, any other is refused by the name of the holder. A process that has lost the fence
    cannot make a record there.
    """

    def delivered(self, holder):
        """-> the epoch of the newest record that a holder's generation has there; None if another generation is
        current, or none.

        Raises:
          NeedsBase: rows that were delivered are lost there.
        """

    def deliver(self, holder, record, directory):
        """Makes a record's rows and its tower part of the place, and then the record; all of it may be done again.

        A base of a holder that is not the current one begins a new generation there, whose number is the place's own.

        Args:
          holder: of the generation.
          record: `records.Record`; the first one, or the one after that of `delivered`.
          directory: `Path` of the generation's directory, which has the record's files; they were checked.

        Raises:
          UserError: the place cannot take it; says why. The same call may succeed later.
        """

    def tidy(self):
        """Removes some of what no reader needs any more, for some tens of milliseconds or beside the caller."""

    def tidy_all(self):
        """Removes all that no reader needs any more; returns when it is done."""

    def close(self):
        """Gives the fence back."""
