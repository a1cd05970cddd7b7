"""Flags of `launch`; those that `horovodrun` has too have its names."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.system.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class LaunchFlags(Settings, title="Launch"):
    """Launch.

    Raises:
      UserError: numbers of workers that cannot be, or two sources of the hosts.
    """

    np: int = setting(1, "number of workers to start with", "workers", minimum=1)
    min_np: int = setting(0, "fewest workers to continue with after a loss; 0 for --np", "workers", minimum=0)
    max_np: int = setting(0, "most workers to continue with if slots are added; 0 for --np", "workers", minimum=0)
    hosts: str = setting(
        "", "hosts and their numbers of slots, such as a:4,b:4, this host first; this host alone if not given"
    )
    hostfile: str = setting("", "file of the hosts, one NAME slots=NUMBER per line", "path")
    host_discovery_script: str = setting(
        "", "command that prints the available hosts, one NAME or NAME:SLOTS per line; it is run every second"
    )
    slots_per_host: int = setting(
        1, "slots of a host that --host_discovery_script prints without", "slots", minimum=1, flag=None
    )
    network_interface: str = setting("", "network interface by which the workers of several hosts connect", "name")
    ssh_port: int = setting(
        0, "port of ssh on all hosts; 0 takes the port of the ssh settings", minimum=0, maximum=65535
    )
    start_timeout: int = setting(30, "longest time for horovodrun to reach all hosts", "seconds", minimum=1)
    elastic_timeout: float = setting(
        600.0, "longest wait until the hosts have enough slots; after it the launcher gives up", "seconds", minimum=1.0
    )
    max_restarts: int = setting(
        5,
        "number of restarts without a new checkpoint between them after which the launcher gives up",
        "restarts",
        minimum=0,
    )

    standby: bool = setting(
        True, "keep workers of this host ready for the next start, with all that they import", flag=None
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.fewest <= self.np <= self.most:
            raise UserError(
                f"--min-np={self.fewest}, -np {self.np}, --max-np={self.most}: expected these in ascending order"
            )
        given = [f"--{name}" for name in ("hosts", "hostfile", "host_discovery_script") if getattr(self, name)]
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)} exclude each other: each says which hosts there are")

    @property
    def fewest(self) -> int:
        """The fewest workers to continue with."""
        return self.min_np or self.np

    @property
    def most(self) -> int:
        """The most workers."""
        return self.max_np or self.np
