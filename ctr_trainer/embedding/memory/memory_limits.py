"""The memory that this process may use: the machine's, or less if a cgroup, such as a container's, limits it."""

import dataclasses
import functools
import logging
import pathlib
import time
from collections.abc import Callable, Iterator

import psutil

_log = logging.getLogger(__name__)
_TOTAL_SECONDS = 60
_ROOT = pathlib.Path("/sys/fs/cgroup")
_OWN = pathlib.Path("/proc/self/cgroup")
# For each cgroup version: the file of the limit, the file of the usage, and the prefix of the lines in `memory.stat`
# that count file pages. The kernel reclaims file pages when memory runs short; they do not include shared memory.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: ("memory.max", "memory.current", ""),
}


@dataclasses.dataclass(frozen=True)
class MemoryLimit:
    """A memory limit: the limited unit, the limit, and the bytes in use under it that the kernel cannot reclaim."""

    name: str
    total: int
    used: int

    @property
    def free(self) -> int:
        return max(self.total - self.used, 0)


class MemoryWatch:
    """Warns when 90% of the memory that this process may use is in use; warns again only after it fell below 80%.

    `what` is the name of this process in the warning.
    """

    _WARNING, _AGAIN = 0.9, 0.8

    def __init__(self, what: str, limits: Callable[[], list[MemoryLimit]] | None = None) -> None:
        self._what, self._limits = what, limits or memory_limits
        self._warned = False

    def look(self) -> None:
        fullest = max(self._limits(), key=lambda limit: limit.used / limit.total)
        share = fullest.used / fullest.total
        if share >= self._WARNING and not self._warned:
            _log.warning(
                "%.0f%% of the memory of %s is used, %.1f of %.1f GB: at its end the kernel kills %s. Give it more, or "
                "use more service shards on other hosts, [[limits]] of the feature spec, or narrower embeddings",
                100 * share,
                fullest.name,
                fullest.used / 1e9,
                fullest.total / 1e9,
                self._what,
            )
        self._warned = share >= (self._AGAIN if self._warned else self._WARNING)


def memory_limits(own: pathlib.Path = _OWN, root: pathlib.Path = _ROOT) -> list[MemoryLimit]:
    """Returns the limits of the machine and of each cgroup of this process that has a smaller limit.

    The file `own` lists the cgroups of this process; `root` is the directory where they are mounted.
    """
    machine = psutil.virtual_memory()
    limits = [MemoryLimit("this machine", machine.total, machine.total - machine.available)]
    for version, directory in _cgroups(own, root):
        limit = _limit(version, directory)
        if limit is not None and limit.total < machine.total:
            limits.append(limit)
    return limits


def memory_total() -> int:
    """Returns the smallest limit in bytes; a changed limit takes effect within `_TOTAL_SECONDS`."""
    return _total(int(time.monotonic()) // _TOTAL_SECONDS)


@functools.lru_cache(maxsize=1)
def _total(period: int) -> int:
    # Cached because each array needs it, and reading the files of the cgroups takes longer than making a small array.
    return min(limit.total for limit in memory_limits())


def tightest() -> MemoryLimit:
    """Returns the `MemoryLimit` with the least free memory."""
    return min(memory_limits(), key=lambda limit: limit.free)


def _cgroups(own: pathlib.Path, root: pathlib.Path) -> Iterator[tuple[int, pathlib.Path]]:
    """Yields (version, directory) of each cgroup that limits this process's memory, the innermost first."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return  # Not Linux.
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, mount = 2, root
        elif "memory" in controllers.split(","):
            version, mount = 1, root / "memory"
        else:
            continue
        # In a container the path may be the host's and not exist; then the mount itself is the container's cgroup.
        inner = mount / path.lstrip("/")
        for directory in [inner, *inner.parents]:
            if directory.is_relative_to(mount):
                yield version, directory


def _limit(version: int, directory: pathlib.Path) -> MemoryLimit | None:
    """Returns the `MemoryLimit` of a cgroup, or None if it has none."""
    limit, usage, prefix = _FILES[version]
    try:
        total = int((directory / limit).read_text())  # A cgroup of version 2 without a limit says `max`.
        used = int((directory / usage).read_text())
        stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    files = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return MemoryLimit(f"the cgroup {directory}", total, max(used - files, 0))
