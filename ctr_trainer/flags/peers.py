"""Flags of `bench peers`."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class PeersFlags:
    """Bench peers"""

    peer_python: tuple[str, ...] = flag(
        (), "interpreter of a peer (in_graph, torch, tfra) that is installed elsewhere, as tfra=/env/bin/python", "path"
    )
