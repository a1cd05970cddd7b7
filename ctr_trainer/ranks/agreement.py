"""What all ranks of a job must have alike: the package, the flags, the time, and hosts that are not one machine.

Each rank introduces itself at the start of the job, and each finds the same fault in all introductions.
"""

import dataclasses
import hashlib
import os
import pathlib
import socket
import time

from ctr_trainer import __version__
from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes import hardware

# Ranks of several hosts tell each other when they were last alive, and one that was silent for 5 s is called dead
# (`missing_ranks`): of these 5 s clocks may take less than half.
MOST_SECONDS_APART = 2.0
_LOOPBACK_NAMES = ("localhost", "127.")
_NAMED_FLAGS = 4
_CLOCK_LOOKS = 4


@dataclasses.dataclass(frozen=True)
class Introduction:
    """What a rank tells the others.

    Attributes:
      rank: which.
      host: what its host calls itself.
      started_as: what `horovodrun -H` calls its host.
      machine: `hardware.machine_id`.
      package: version and sources of this package; "" where all ranks are on one host.
      flags: by name, the values that have to be alike.
      clock: seconds since 1970, by its host.
    """

    rank: int
    host: str
    started_as: str
    machine: str
    package: str
    flags: dict
    clock: float

    @classmethod
    def of_this_process(cls, rank, has_other_hosts, flags):
        """-> what this process says of itself now."""
        host = socket.gethostname()
        package = package_version() if has_other_hosts else ""
        started_as = os.environ.get("HOROVOD_HOSTNAME", host)
        return cls(rank, host, started_as, hardware.machine_id(), package, flags, time.time())

    @classmethod
    def parse(cls, values):
        """-> that of which `values` are the fields, or, of another version of this package, some of them."""
        return cls(**{field.name: values.get(field.name) for field in dataclasses.fields(cls)})


def package_version():
    """-> the version of this package, with a fingerprint of its sources."""
    found, root = hashlib.blake2b(digest_size=4), pathlib.Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)} {path.stat().st_size} ".encode() + path.read_bytes())
    return f"{__version__} (sources {found.hexdigest()})"


def agree(introductions):
    """Raises UserError where the ranks are not one job. A collective, if `introductions` is one.

    Args:
      introductions: f() -> the `Introduction` of each rank, of about the same moment.
    """
    ranks = introductions()
    for _ in range(_CLOCK_LOOKS):
        if not are_apart(ranks):
            break
        ranks = introductions()  # On a busy machine a rank may have been held up.
    if found := fault(ranks):
        raise UserError(found)


def fault(ranks):
    """-> what keeps these ranks from being one job, and what to do; "" for nothing.

    Args:
      ranks: the `Introduction` of each, by rank.
    """
    return _of_packages(ranks) or _of_machines(ranks) or _of_flags(ranks) or _of_clocks(ranks)


def are_apart(ranks):
    """-> whether the clocks of their hosts seem too far apart: a host whose ranks were all held up looks like it."""
    clocks = _clocks(ranks).values()
    return max(clocks) - min(clocks) > MOST_SECONDS_APART


def _clocks(ranks):
    """-> by host, what its clock said to the first of its ranks; a rank that was held up looks at it later."""
    clocks = {}
    for each in ranks:
        clocks[each.host] = min(each.clock, clocks.get(each.host, each.clock))
    return clocks


def _of_packages(ranks):
    if len({each.package for each in ranks}) == 1:
        return ""
    return (
        f"the hosts run different versions of ctr_trainer: {_by_value(ranks, lambda each: each.package)}. Install the "
        "same one on each, as by the same commit of a checkout"
    )


def _of_machines(ranks):
    """horovodrun takes each name that leads to loopback for its own host, and starts the workers there."""
    names = {}
    for each in ranks:
        names.setdefault((each.machine, each.host), {})[each.started_as] = True
    for (_, host), several in names.items():
        wrong = [name for name in several if name != host and not name.startswith(_LOOPBACK_NAMES)]
        if len(several) > 1 and wrong:
            return (
                f"horovodrun has started the workers of {' and of '.join(several)} all on {host}: there a name of "
                f"another host leads to {host} itself, as to 127.0.1.1. Put the right address of {', '.join(wrong)} "
                f"into /etc/hosts of {host}, or give horovodrun addresses: -H 10.0.0.1:2,10.0.0.2:2"
            )
    return ""


def _of_flags(ranks):
    differing = [name for name in ranks[0].flags if any(each.flags[name] != ranks[0].flags[name] for each in ranks)]
    if not differing:
        return ""
    named = [
        f"--{name} is {_by_value(ranks, lambda each, name=name: each.flags[name])}" for name in differing[:_NAMED_FLAGS]
    ]
    if len(differing) > _NAMED_FLAGS:
        named.append(f"{len(differing) - _NAMED_FLAGS} more flags differ")
    return (
        f"the ranks of this job have different flags: {'; '.join(named)}. Give all of them the same command and files"
    )


def _of_clocks(ranks):
    if not are_apart(ranks):
        return ""
    of_hosts = _clocks(ranks)
    first = min(of_hosts.values())
    clocks = ", ".join(f"{host} {_time(clock)}" for host, clock in of_hosts.items())
    return (
        f"the clocks of the hosts are {max(of_hosts.values()) - first:.0f} s apart, and {MOST_SECONDS_APART:g} s is "
        f"the most: {clocks}. Certificates, and which rank is said to be missing, go by them: set them by NTP "
        "(timedatectl set-ntp true)"
    )


def _time(clock):
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(clock))


def _by_value(ranks, value_of):
    """-> `30 on host-1 (ranks 0, 1), 10 on host-2 (ranks 2, 3)`."""
    found = {}
    for each in ranks:
        found.setdefault((str(value_of(each)), each.host), []).append(str(each.rank))
    return ", ".join(
        f"{value or repr('')} on {host} (rank{'s' * (len(of) > 1)} {', '.join(of)})"
        for (value, host), of in found.items()
    )
