"""Latency percentiles for the `[RunStatus]` lines of the log; the memory, cores and GPU of this process."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import psutil
from hdrh.histogram import HdrHistogram

Item = TypeVar("Item")
UNIT = "[RunStatus]: all in microseconds; Ops, Ps: of one operation, in any thread; Step: of the thread of the steps"
_LONGEST_US = 3_600_000_000
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def _empty() -> HdrHistogram:
    return HdrHistogram(1, _LONGEST_US, 3)


def _counts(histogram: HdrHistogram) -> np.ndarray:
    """Returns a view of the counts of all buckets. The histogram's own methods iterate over the buckets in Python."""
    return np.frombuffer(histogram.counts, np.int64)


class Latency:
    """Percentiles of one operation's duration, in microseconds, to three significant digits; for several threads.

    `reset` starts a new interval, but keeps `total_seconds` and `total_count`.

    `of`: the owner of the counted operations, such as `the host`; "" for this process only.

    `shows_none`: whether the log has a line, with count 0, for an interval without operations.
    """

    def __init__(self, name: str, of: str = "") -> None:
        self.name, self._of, self.shows_none = name, of and f", of {of}", False
        self._histogram = _empty()
        self._lock = threading.Lock()
        self._total_us = 0.0
        self.total_count = 0

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Records the duration of the block."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.record((time.perf_counter_ns() - start) // 1000)

    def each(self, iterable: Iterable[Item]) -> Iterator[Item]:
        """Yields the items, and records the time that each item took."""
        start = time.perf_counter_ns()
        for item in iterable:
            self.record((time.perf_counter_ns() - start) // 1000)
            yield item
            start = time.perf_counter_ns()

    def record(self, microseconds: float) -> None:
        """Adds one duration."""
        with self._lock:
            self._histogram.record_value(min(max(int(microseconds), 1), _LONGEST_US))
            self._total_us += microseconds
            self.total_count += 1

    def encoded(self) -> str:
        """Returns the durations since the last `reset`, with the histogram's precision, as text for `between`."""
        with self._lock:
            return self._histogram.encode().decode()

    @classmethod
    def between(cls, name: str, of: str, earlier: Iterable[str], later: Iterable[str]) -> Latency:
        """Returns the durations that the `encoded` texts `later` contain in addition to the texts `earlier`.

        Each text comes from one process; the result has the durations of all processes.
        """
        latency = cls(name, of)
        before, now = _empty(), _empty()
        for histogram, texts in ((before, earlier), (now, later)):
            for text in texts:
                histogram.decode_and_add(text.encode())
        added = _counts(now) - _counts(before)
        for index in np.flatnonzero(added > 0).tolist():
            latency._histogram.record_value(now.get_value_from_index(index), int(added[index]))
        return latency

    def reset(self) -> None:
        """Starts a new interval for the percentiles, for example after each log line."""
        with self._lock:
            self._histogram = _empty()

    @property
    def count(self) -> int:
        return self._histogram.get_total_count()

    @property
    def total_seconds(self) -> float:
        return self._total_us / 1e6

    def percentiles(self) -> dict[str, int]:
        """Returns `count`, and `P50`, `P95`, `P99`, `Max` in microseconds; all 0 if nothing was recorded."""
        with self._lock:
            histogram = self._histogram
            if not self.count:
                return dict(count=0, P50=0, P95=0, P99=0, Max=0)
            totals = np.cumsum(_counts(histogram))

            def at(percentile: int) -> int:
                """Returns the same as `get_value_at_percentile` of the histogram."""
                index = np.searchsorted(totals, histogram.get_target_count_at_percentile(percentile))
                return histogram.get_highest_equivalent_value(histogram.get_value_from_index(int(index)))

            return dict(count=self.count, P50=at(50), P95=at(95), P99=at(99), Max=histogram.get_max_value())

    def status_line(self, as_in_graph: bool = False) -> str:
        """Returns the log line, such as `[RunStatus]: OpsPushGrad statistics => count: 3  P50: 10 ...`.

        `as_in_graph`: whether the line is that of a TensorFlow 1 program: six decimals, and no owner after `Max`.
        """
        count, *microseconds = self.percentiles().items()
        form, of = (".6f", "") if as_in_graph else ("d", self._of)
        figures = "  ".join(f"{name}: {value:{form}}" for name, value in microseconds)
        return f"[RunStatus]: {self.name} statistics => count: {count[1]}  {figures}{of}"


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

    `local_rank`: the index of the worker's GPU in CUDA_VISIBLE_DEVICES. If this variable is not set, it is the index
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
