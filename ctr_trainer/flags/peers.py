"""Flags of `bench peers`."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class PeersFlags(Settings, title="Bench peers"):
    """Bench peers."""

    peer_python: tuple[str, ...] = setting(
        (), "interpreter of a peer (in_graph, torch, tfra) that is installed elsewhere, as tfra=/env/bin/python", "path"
    )
