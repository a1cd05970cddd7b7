"""The machine: its name, the instructions of its processor, and the cores of each worker."""

import contextlib
import os
import pathlib
import sys

_BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")
# Added to a thread's niceness: it then gets a quarter of a busy core's time, so that files of rows are written in time.
BEHIND = 5


def pin_cores(local_rank: int, local_size: int) -> set[int] | None:
    """Pins this process, and the threads and processes that it starts from now on, to its share of the machine's cores.

    A worker that moves between cores loses its caches, and loses time to the idle threads of other workers.

    Returns:
      the cores of this process before, for child processes that are no workers. None if nothing was done: there is one
      worker, there are fewer cores than workers, the system has no affinity, or mpirun, SLURM or taskset has already
      given out the cores.
    """
    if local_size == 1 or not hasattr(os, "sched_setaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < max(local_size, os.cpu_count() or 1):
        return None
    share = len(allowed) // local_size
    os.sched_setaffinity(0, allowed[local_rank * share : (local_rank + 1) * share])
    return set(allowed)


def run_on(cores: set[int] | None) -> None:
    """Has this thread, and those that it starts from now on, run on `cores`, a set; does nothing for None."""
    if cores is not None:
        os.sched_setaffinity(0, cores)


def keep_on(pid: int, cores: set[int] | None) -> None:
    """Has all threads of a process, and those that they start from now on, run on `cores`, a set; nothing for None."""
    seen: set[int] = set()
    while cores is not None and (found := _threads(pid) - seen):  # One that is not kept yet may have started another.
        for thread in found:
            with contextlib.suppress(ProcessLookupError):  # It has ended.
                os.sched_setaffinity(thread, cores)
        seen |= found


def _threads(pid: int) -> set[int]:
    """Returns the ids of a process's threads; empty once it has ended."""
    try:
        return {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    except FileNotFoundError:
        return set()


def own_cores() -> set[int] | None:
    """Returns the cores that this process may use, a set; None if the system has no affinity of processes to cores."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def step_back(cores: set[int] | None) -> None:
    """Has this thread run on `cores`, a set, behind the other threads there, for as long as it lives; None for no set.

    It gets the time that others leave, and a quarter of a core's time if they leave none.
    """
    run_on(cores)
    if sys.platform == "linux":  # Elsewhere it would hold for the whole process.
        os.nice(BEHIND)


def usable_cores() -> int:
    """Returns how many cores this process may use."""
    cores = own_cores()
    return os.cpu_count() or 1 if cores is None else len(cores)


def has_bfloat16(cpuinfo: str | os.PathLike[str] = "/proc/cpuinfo") -> bool:
    """Returns whether this processor multiplies bfloat16 by instructions of its own (AVX-512 BF16, AMX)."""
    try:
        text = pathlib.Path(cpuinfo).read_text()
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), ())
    return any(flag in flags for flag in _BFLOAT16_FLAGS)


def machine_id(namespace: str = "net") -> str:
    """Returns what names this boot of this machine and a namespace of this process; "" if it is not known.

    Args:
      namespace: `net`, equal for processes with the same loopback addresses; or `pid`, equal for processes that see the
        same process numbers, such as those of one container.
    """
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(f'/proc/self/ns/{namespace}').st_ino}"
    except OSError:
        return ""
