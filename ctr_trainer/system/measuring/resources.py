"""The resident memory of a process, and the load and memory of its GPU."""

import os
from types import ModuleType
from typing import Any

import psutil

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def resident_bytes() -> int:
    """Returns the bytes of this process's memory that are in RAM; memory shared by processes counts in each of them."""
    return psutil.Process().memory_info().rss


class NoGpu:
    """A process without a GPU, or with a GPU that NVML cannot ask."""

    def read(self) -> tuple[float, int] | None:
        """Returns the share of the last second in which the GPU worked, and the bytes of its memory in use, or None."""
        return None


class Gpu(NoGpu):
    """The GPU of a worker, measured by NVIDIA's NVML. It includes what other processes do on the GPU.

    Args:
      nvml: the module `pynvml` of the package `nvidia-ml-py`, initialized.
      handle: NVML's handle of the device.
    """

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def read(self) -> tuple[float, int] | None:
        try:
            busy = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
            return busy, self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used
        except self._nvml.NVMLError:
            return None


def open_gpu(local_rank: int) -> NoGpu:
    """Finds the GPU of a worker of this host.

    Args:
      local_rank: number of the worker within its host, from 0. It is the place of the worker's GPU in
        CUDA_VISIBLE_DEVICES if that is set, and if not, among all GPUs in the order of their PCI addresses, which is
        CUDA's order with CUDA_DEVICE_ORDER=PCI_BUS_ID.

    Returns:
      `Gpu`; `NoGpu` if there is no NVML, no `pynvml`, or no such device.
    """
    try:
        import pynvml
    except ImportError:
        return NoGpu()
    visible = [name.strip() for name in os.environ.get(_VISIBLE, "").split(",") if name.strip()]
    if visible and local_rank >= len(visible):
        return NoGpu()
    name = visible[local_rank] if visible else str(local_rank)
    try:
        pynvml.nvmlInit()
        by_index = name.isdecimal()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else pynvml.nvmlDeviceGetHandleByUUID(name)
    except pynvml.NVMLError:
        return NoGpu()
    return Gpu(pynvml, handle)
