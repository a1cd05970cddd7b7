"""Where the ranks of a job meet before Horovod connects them.

Horovod ends a rank that finds no way to another one with an abort that names no host, and so it does where a rank comes
30 s later than another.
"""

import contextlib
import json
import logging
import socket
import time
from collections.abc import Iterator

import psutil

from ctr_trainer.messages.errors import Lost
from ctr_trainer.processes import reach
from ctr_trainer.ranks.notices import Notices
from ctr_trainer.ranks.placement import Placement

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.1
_TELL_SECONDS = 30.0
_NAMED = 8


@contextlib.contextmanager
def meeting(notices: Notices, placement: Placement, interface: str | None, seconds: float) -> Iterator[list[int]]:
    """Waits for all ranks, and has the first rank of each host look whether it reaches the other hosts.

    Within it, the other hosts can look for this one. Without notices there is no meeting.

    Gives the first rank of each host, as a sorted list, the same on all ranks; [0] for a lone rank, and [] without a
    meeting.

    Args:
      notices: `Notices` of the job.
      placement: `Placement` of this process.
      interface: that Horovod connects the ranks by.
      seconds: the longest wait.

    Raises:
      Lost: a rank does not come, or cannot be reached; names its host.
    """
    if placement.size == 1 or not notices.address:
        yield [0] if placement.size == 1 else []
        return
    if not notices.is_here() and (why := reach.why_not(notices.address)):
        raise Lost(f"horovodrun at {notices.address} cannot be reached: {why}")
    here, own = socket.gethostname(), _address_of(interface)
    looks = placement.is_first_of_host and not placement.is_on_one_host and own
    with socket.create_server((own, 0), backlog=placement.size) if looks else contextlib.nullcontext() as server:
        place = f"{own}:{server.getsockname()[1]}" if looks else ""
        notices.put(f"ready.{placement.rank}", json.dumps([here, place, placement.is_first_of_host]))
        hosts, first_ranks = _all_hosts(notices, placement.rank, placement.size, seconds)
        if looks:
            _look_for(hosts, place)
        yield first_ranks


def _all_hosts(notices: Notices, rank: int, size: int, seconds: float) -> tuple[list[list[str]], list[int]]:
    """Returns the [name, `host:port` that a host listens at] of the hosts, and the first ranks, once all have come."""
    began, told, came = time.monotonic(), time.monotonic(), {}
    while True:
        if rank == 0:
            missing = [each for each in range(size) if each not in came]
            came |= {each: text for each in missing if (text := notices.get(f"ready.{each}")) is not None}
            if len(came) == size:
                said = {each: json.loads(text) for each, text in came.items()}
                hosts = [[host, place] for host, place, _ in said.values() if place]
                notices.put("met", json.dumps([hosts, sorted(each for each, (*_, first) in said.items() if first)]))
        if text := notices.get("met"):
            return json.loads(text)
        waited = time.monotonic() - began
        if rank == 0 and time.monotonic() - told > _TELL_SECONDS:
            told = time.monotonic()
            _log.warning("rank 0 has waited %.0f s for the start of %s", waited, _named(notices, size, came))
        if waited > seconds:
            who = _named(notices, size, came) if rank == 0 else "the other ranks"
            raise Lost(f"rank {rank} has waited for the start of {who} for longer than --stall_timeout={seconds:g}")
        time.sleep(min(_POLL_SECONDS + waited / 10, 1.0))


def _named(notices, size, came):
    missing = [each for each in range(size) if each not in came]
    hosts = [(notices.get(f"process.{each}") or "").partition(" ")[2] for each in missing[:_NAMED]]
    parts = [f"rank {each}{f' on {host}' if host else ''}" for each, host in zip(missing, hosts, strict=False)]
    return ", ".join(parts) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")


def _look_for(hosts, own):
    for name, address in hosts:
        if address != own and (why := reach.why_not(address)):
            raise Lost(
                f"the workers of {socket.gethostname()} cannot reach those of {name}: {why}. Workers connect at ports "
                "that the system picks, those of /proc/sys/net/ipv4/ip_local_port_range: open these between all hosts"
            )


def _address_of(interface):
    """-> the first IPv4 address of a network interface; "" where it has none."""
    addresses = psutil.net_if_addrs().get(interface, [])
    return next((each.address for each in addresses if each.family == socket.AF_INET), "")
