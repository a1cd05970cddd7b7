"""What a process holds of its machine: resident memory, and of its GPU."""

import os

import psutil

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def resident_bytes():
    """-> the memory of this process that is in RAM; memory that it shares with others counts in each of them."""
    return psutil.Process().memory_info().rss


class NoGpu:
    """A process without a GPU, or whose GPU cannot be asked."""

    def read(self):
        """-> (share of the last second or less that it was at work, bytes of its memory in use); None if not known."""
        return


class Gpu(NoGpu):
    """The GPU of a worker, by NVIDIA's NVML; what others do on it counts too.

    Args:
      nvml: the module `pynvml` of the package `nvidia-ml-py`, initialized.
      handle: of the device, NVML's.
    """

    def __init__(self, nvml, handle):
        self._nvml, self._handle = nvml, handle

    def read(self):
        try:
            busy = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
            return busy, self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used
        except self._nvml.NVMLError:
            return None


def open_gpu(local_rank):
    """-> the `Gpu` of a worker of this host; `NoGpu` where there is no NVML, no binding for it, or no such device.

    Args:
      local_rank: of the worker. It has the GPU of that place in CUDA_VISIBLE_DEVICES, if that is set, else of all in
        the order of their PCI addresses, as CUDA has them with CUDA_DEVICE_ORDER=PCI_BUS_ID.
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
