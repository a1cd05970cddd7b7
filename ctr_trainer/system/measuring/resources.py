"""The resident memory of a process, and the load and memory of its GPU."""

import os
from collections.abc import Callable

import psutil

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def resident_bytes() -> int:
    """Returns the bytes of this process's memory that are in RAM; memory shared by processes counts in each of them."""
    return psutil.Process().memory_info().rss


def no_gpu() -> None:
    """Reads nothing, as there is no GPU, or NVML cannot ask it."""


def open_gpu(local_rank: int) -> Callable[[], tuple[float, int] | None]:
    """Finds the GPU of a worker of this host, which is measured by NVIDIA's NVML.

    Args:
      local_rank: number of the worker within its host, from 0. It is the place of the worker's GPU in
        CUDA_VISIBLE_DEVICES if that is set, and if not, among all GPUs in the order of their PCI addresses, which is
        CUDA's order with CUDA_DEVICE_ORDER=PCI_BUS_ID.

    Returns:
      f() -> the share of the last second in which the GPU worked, for any process, and the bytes of its memory in use;
      None if they are not known. It is `no_gpu` if there is no NVML, no `pynvml`, or no such device.
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
