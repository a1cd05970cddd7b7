"""Waits for all ranks at the start of a job, and checks that package, flags and machines are consistent."""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import psutil

from ctr_trainer import __version__
from ctr_trainer.ranks.notices import Notices, Placement
from ctr_trainer.system.messages.errors import Lost, UserError
from ctr_trainer.system.processes import hardware, reach

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.1
_TELL_SECONDS = 30.0
_NAMED = 8
_LOOPBACK_NAMES = ("localhost", "127.")
_NAMED_FLAGS = 4


@dataclasses.dataclass(frozen=True)
class Introduction:
    """The properties of a rank that all ranks compare.

    Attributes:
      started_as: name of the host in `horovodrun -H`.
      machine: identifies the machine; "" if unknown.
      package: version and fingerprint of this package; "" if all ranks are on one host.
      flags: settings, name -> value, that must be equal on all ranks.
      place: `host:port` at which the other hosts can try to connect to this host; "" if they need not.
    """

    rank: int
    host: str
    started_as: str
    machine: str
    package: str
    flags: dict[str, str]
    place: str = ""
    is_first_of_host: bool = False

    @classmethod
    def parse(cls, text: str) -> "Introduction":
        """Parses an introduction. Fields that another version of the package lacks are None."""
        values = json.loads(text)
        found: dict[str, Any] = {field.name: values.get(field.name) for field in dataclasses.fields(cls)}
        return cls(**found)


@contextlib.contextmanager
def meeting(
    notices: Notices, placement: Placement, interface: str | None, seconds: float, flags: dict[str, str]
) -> Iterator[list[int]]:
    """Waits for all ranks, and compares them. The first rank of each host checks that it can reach the other hosts.

    Within the block, the other hosts can check this host. Without notices, this function neither waits nor checks.

    Yields the sorted first ranks of the hosts, the same on all ranks; [0] for a single rank, and [] without notices.
    Horovod connects the ranks by `interface`, and all ranks must have the same `flags`, name -> value.

    Raises Lost if a rank does not start, or a rank or `horovodrun` cannot be reached, and UserError if the ranks are
    inconsistent.
    """
    if placement.size == 1 or not notices.address:
        yield [0] if placement.size == 1 else []
        return
    if not notices.is_here() and (why := reach.why_not(notices.address)):
        raise Lost(f"horovodrun at {notices.address} cannot be reached: {why}")
    here, addresses = socket.gethostname(), psutil.net_if_addrs().get(interface or "", [])
    own = next((each.address for each in addresses if each.family == socket.AF_INET), "")
    with contextlib.ExitStack() as resources:
        place = ""
        if placement.is_first_of_host and not placement.is_on_one_host and own:
            server = resources.enter_context(socket.create_server((own, 0), backlog=placement.size))
            place = f"{own}:{server.getsockname()[1]}"
        introduction = Introduction(
            rank=placement.rank,
            host=here,
            started_as=os.environ.get("HOROVOD_HOSTNAME", here),
            machine=hardware.machine_id(),
            package="" if placement.is_on_one_host else package_version(),
            flags=flags,
            place=place,
            is_first_of_host=placement.is_first_of_host,
        )
        notices.meetings += 1  # A later `init` of the same processes must not read these texts.
        notices.put(f"ready.{notices.meetings}.{placement.rank}", json.dumps(dataclasses.asdict(introduction)))
        met = _met(notices, placement.rank, placement.size, seconds)
        if met["fault"]:
            raise UserError(met["fault"])
        for name, address in met["hosts"] if place else ():
            if address != place and (why := reach.why_not(address)):
                raise Lost(
                    f"the workers of {here} cannot reach the workers of {name}: {why}. Workers connect to ports in the "
                    "range of /proc/sys/net/ipv4/ip_local_port_range: open these ports between all hosts"
                )
        yield met["first_ranks"]


def _met(notices: Notices, rank: int, size: int, seconds: float) -> dict[str, Any]:
    """Waits for all ranks. Returns what rank 0 has found: `fault`, `first_ranks`, and `hosts` as [name, host:port]."""
    began = told = time.monotonic()
    came: dict[int, str] = {}
    while True:
        if rank == 0:
            missing = [each for each in range(size) if each not in came]
            came |= {
                each: text for each in missing if (text := notices.get(f"ready.{notices.meetings}.{each}")) is not None
            }
            if len(came) == size:
                ranks = [Introduction.parse(came[each]) for each in range(size)]
                hosts = [[each.host, each.place] for each in ranks if each.place]
                first_ranks = [each.rank for each in ranks if each.is_first_of_host]
                met = {"fault": fault(ranks), "hosts": hosts, "first_ranks": first_ranks}
                notices.put(f"met.{notices.meetings}", json.dumps(met))
                return met
        elif text := notices.get(f"met.{notices.meetings}"):
            return json.loads(text)
        waited = time.monotonic() - began
        if rank == 0 and time.monotonic() - told > _TELL_SECONDS:
            told = time.monotonic()
            _log.warning("rank 0 has waited %.0f s for the start of %s", waited, _named(notices, size, came))
        if waited > seconds:
            who = _named(notices, size, came) if rank == 0 else "the other ranks"
            raise Lost(f"rank {rank} has waited for the start of {who} for longer than stall_timeout={seconds:g}")
        time.sleep(min(_POLL_SECONDS + waited / 10, 1.0))


def _named(notices: Notices, size: int, came: dict[int, str]) -> str:
    missing = [each for each in range(size) if each not in came]
    hosts = [(notices.get(f"process.{each}") or "").partition(" ")[2] for each in missing[:_NAMED]]
    parts = [f"rank {each}{f' on {host}' if host else ''}" for each, host in zip(missing, hosts, strict=False)]
    return ", ".join(parts) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")


def package_version() -> str:
    """Returns the version of this package, with a fingerprint of its sources."""
    found, root = hashlib.blake2b(digest_size=4), pathlib.Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)} {path.stat().st_size} ".encode() + path.read_bytes())
    return f"{__version__} (sources {found.hexdigest()})"


def fault(ranks: list[Introduction]) -> str:
    """Describes an inconsistency of the ranks, with advice; "" if there is none."""
    if len({each.package for each in ranks}) > 1:
        return (
            f"the hosts run different versions of ctr_trainer: {_by_value(ranks, [each.package for each in ranks])}. "
            "Install the same version on each, for example the same commit of a checkout"
        )
    return _of_machines(ranks) or _of_flags(ranks)


def _of_machines(ranks: list[Introduction]) -> str:
    """Describes hosts that horovodrun mistook for its own host, because it resolved their names to its own address."""
    names: dict[tuple[str, str], dict[str, bool]] = {}
    for each in ranks:
        names.setdefault((each.machine, each.host), {})[each.started_as] = True
    for (_, host), several in names.items():
        wrong = [name for name in several if name != host and not name.startswith(_LOOPBACK_NAMES)]
        if len(several) > 1 and wrong:
            return (
                f"horovodrun has started the workers of {' and of '.join(several)} all on {host}, because there the "
                f"name of another host resolves to {host} itself. Correct the address of {', '.join(wrong)} in "
                f"/etc/hosts of {host}, or pass addresses to horovodrun: -H 10.0.0.1:2,10.0.0.2:2"
            )
    return ""


def _of_flags(ranks: list[Introduction]) -> str:
    differing = [name for name in ranks[0].flags if any(each.flags[name] != ranks[0].flags[name] for each in ranks)]
    if not differing:
        return ""
    named = [f"{name} is {_by_value(ranks, [each.flags[name] for each in ranks])}" for name in differing[:_NAMED_FLAGS]]
    if len(differing) > _NAMED_FLAGS:
        named.append(f"{len(differing) - _NAMED_FLAGS} more settings differ")
    every = "; ".join(named)
    return f"the ranks of this job have different settings: {every}. Use the same command and files for all ranks"


def _by_value(ranks: list[Introduction], values: list[str]) -> str:
    """Returns text such as `30 on host-1 (ranks 0, 1), 10 on host-2 (ranks 2, 3)`."""
    found: dict[tuple[str, str], list[str]] = {}
    for each, value in zip(ranks, values, strict=True):
        found.setdefault((str(value), each.host), []).append(str(each.rank))
    return ", ".join(
        f"{value or repr('')} on {host} (rank{'s' * (len(of) > 1)} {', '.join(of)})"
        for (value, host), of in found.items()
    )
