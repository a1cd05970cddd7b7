"""What packages of other people add to this one, by the entry points that they declare."""

import importlib.metadata

from ctr_trainer.messages.errors import UserError


def with_plugins(own, group):
    """-> dict of name -> object: our own, and those that installed packages declare as entry points of a group.

    Every process has them, a shard of the embedding service too, and the flags of their settings are in `--help`.

    Args:
      own: dict of name -> object.
      group: of the entry points.

    Raises:
      UserError: one has the name of another, or cannot be loaded.
    """
    found = dict(own)
    for point in importlib.metadata.entry_points(group=group):
        which = f"{point.name} = {point.value}, an entry point of {group} that {point.dist.name} has"
        if point.name in found:
            raise UserError(f"{which}, has the name of another one: give it a name of its own")
        try:
            found[point.name] = point.load()
        except Exception as error:
            raise UserError(
                f"{which}, cannot be loaded ({type(error).__name__}: {error}): mend or uninstall {point.dist.name}"
            ) from error
    return found
