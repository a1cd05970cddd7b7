"""The resident memory of a process, how long it waited for a core, and the load and memory of its GPU."""

import contextlib
import os
import pathlib
from collections.abc import Callable

import psutil

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def resident_bytes() -> int:
    """Returns the bytes of this process's memory in RAM, including memory that it shares with other processes."""
    return psutil.Process().memory_info().rss


def core_seconds() -> tuple[float, float]:
    """Returns the seconds in which this process's threads ran, and in which they could run but waited for a core.

    Threads that have ended do not count. Both are 0 if the system does not tell.
    """
    ran, waited = 0, 0
    for thread in pathlib.Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):  # The thread has ended.
            own = [int(number) for number in thread.read_text().split()]
            ran, waited = ran + own[0], waited + own[1]
    return ran / 1e9, waited / 1e9


def no_gpu() -> None:
    """Returns None, because there is no GPU or NVML cannot read it."""


def open_gpu(local_rank: int) -> Callable[[], tuple[float, int] | None]:
    """Returns a function that measures the GPU of a worker of this host with NVIDIA's NVML; `no_gpu` without a GPU.

    The function returns the fraction of the last second in which any process used the GPU, and the bytes of its memory
    in use; None if they are unknown.

    Args:
      local_rank: the index of the worker's GPU in CUDA_VISIBLE_DEVICES. If this variable is not set, it is the index
        among all GPUs in the order of their PCI addresses, which is CUDA's order with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    try:
        import pynvml
    except ImportError:
        return no_gpu
    visible = [name.strip() for name in os.environ.get(_VISIBLE, "").split(",") if name.strip()]
    if visible and local_rank >= len(visible):
        return no_gpu
    name = visible[local_rank] if visible else str(local_rank)
    try:
        pynvml.nvmlInit()
        by_index = name.isdecimal()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else pynvml.nvmlDeviceGetHandleByUUID(name)
    except pynvml.NVMLError:
        return no_gpu

    def read() -> tuple[float, int] | None:
        try:
            busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            return busy, pynvml.nvmlDeviceGetMemoryInfo(handle).used
        except pynvml.NVMLError:
            return None

    return read
