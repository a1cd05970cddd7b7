"""Ports for servers of tests, which no other process of tests is given and no outgoing connection uses."""

import contextlib
import socket

_BUS = 10_000  # The bus of a server of a Redis cluster is at its port and so much.
_kept: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Returns ports that are free, together with their bus ports, below the range of ephemeral ports."""
    found: list[int] = []
    for port in range(20_000, 22_768):
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + _BUS))
            # Other processes of tests look at the same time: the port is of the one that has this name, until it ends.
            name = socket.socket(socket.AF_UNIX)
            name.bind(f"\0ctr_trainer.test_port.{port}")
            _kept.append(name)
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free ports")


def free_port() -> int:
    """Returns one of `free_ports`."""
    return free_ports(1)[0]
