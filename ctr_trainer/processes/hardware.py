"""Which machine this is, what its processor offers, and which part of it a worker takes."""

import os
import pathlib

_BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")


def pin_cores(local_rank, local_size):
    """Keeps this process, and the threads and processes it starts from here on, on its share of the machine's cores.

    Workers that wander between cores drag their caches along, and each other's idle threads take their time.

    Args:
      local_rank, local_size: which worker of how many on this machine.

    Returns:
      the cores before, to give back to what is not a worker; None where nothing was done: a single worker, fewer cores
      than workers, a system without affinity, or cores that somebody (mpirun, SLURM, taskset) has already handed out.
    """
    if local_size == 1 or not hasattr(os, "sched_setaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < max(local_size, os.cpu_count()):
        return None
    share = len(allowed) // local_size
    os.sched_setaffinity(0, allowed[local_rank * share : (local_rank + 1) * share])
    return set(allowed)


def has_bfloat16(cpuinfo="/proc/cpuinfo"):
    """-> whether this processor multiplies bfloat16 by instructions of its own (AVX-512 BF16, AMX)."""
    try:
        text = pathlib.Path(cpuinfo).read_text()
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), ())
    return any(flag in flags for flag in _BFLOAT16_FLAGS)


def machine_id():
    """-> text that two processes have alike where the loopback addresses of both are the same; "" where not known."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""
