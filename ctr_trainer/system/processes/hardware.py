"""The machine: its identity, the instructions of its processor, its cores, and the limit on open files."""

import contextlib
import os
import pathlib
import resource

_BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")
# Added to a thread's niceness. The thread then gets a quarter of a busy core's time, enough to write files of rows.
BEHIND = 5


def pin_cores(local_rank: int, local_size: int) -> set[int] | None:
    """Pins this process, and threads and processes that it starts later, to its share of the machine's cores.

    A worker that moves between cores loses its caches, and loses time to the idle threads of other workers.

    Returns the previous cores of this process. None if nothing was done: there is one worker, there are fewer cores
    than workers, or mpirun, SLURM or taskset has already assigned the cores.
    """
    if local_size == 1:
        return None
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < max(local_size, os.cpu_count() or 1):
        return None
    share = len(allowed) // local_size
    os.sched_setaffinity(0, allowed[local_rank * share : (local_rank + 1) * share])
    return set(allowed)


def run_on(cores: set[int] | None) -> None:
    """Runs this thread, and threads that it starts later, on the set `cores`. Does nothing for None."""
    if cores is not None:
        os.sched_setaffinity(0, cores)


def keep_on(pid: int, cores: set[int] | None) -> None:
    """Runs all threads of a process, and threads that they start later, on the set `cores`. Does nothing for None."""
    seen: set[int] = set()
    while cores is not None and (found := _threads(pid) - seen):  # A thread may have started another one meanwhile.
        for thread in found:
            with contextlib.suppress(ProcessLookupError):  # The thread has ended.
                os.sched_setaffinity(thread, cores)
        seen |= found


def _threads(pid: int) -> set[int]:
    """Returns the ids of a process's threads; an empty set if the process has ended."""
    try:
        return {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    except FileNotFoundError:
        return set()


def step_back(cores: set[int] | None) -> None:
    """Runs this thread on the set `cores`, with a lower priority than other threads, until it ends.

    The thread gets the time that other threads leave, and a quarter of a core's time if they leave none. If `cores` is
    None, only the priority changes.
    """
    run_on(cores)
    os.nice(BEHIND)  # On Linux, of this thread only.


def usable_cores(quota: str | os.PathLike[str] = "/sys/fs/cgroup/cpu.max") -> int:
    """Returns the number of cores that this process may use: its affinity, or a container's CPU quota if it is less."""
    number = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # There is no file, or its share is "max".
        share, period = map(int, pathlib.Path(quota).read_text().split())
        number = min(number, max(share // period, 1))
    return number


def allow_open_files() -> None:
    """Raises this process's soft limit on open files, often 1024, to the hard limit, if that is permitted."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def has_bfloat16(cpuinfo: str | os.PathLike[str] = "/proc/cpuinfo") -> bool:
    """Whether this processor has instructions that multiply bfloat16 (AVX-512 BF16, AMX)."""
    try:
        text = pathlib.Path(cpuinfo).read_text()
    except OSError:
        return False
    own = next((line.split() for line in text.splitlines() if line.startswith("flags")), ())
    return any(flag in own for flag in _BFLOAT16_FLAGS)


def machine_id(namespace: str = "net") -> str:
    """Returns a text that identifies this machine, its current boot, and a namespace of this process; "" if unknown.

    `namespace`: `net`, which is equal for processes with the same loopback addresses; or `pid`, which is equal for
    processes that see the same process ids, such as the processes of one container.
    """
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(f'/proc/self/ns/{namespace}').st_ino}"
    except OSError:
        return ""
