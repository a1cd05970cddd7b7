"""Pinning and what the processor offers."""

import os
import subprocess
import sys
import threading

import pytest

from ctr_trainer.system.processes import hardware

PIN = """
import os, sys
from ctr_trainer.system.processes import hardware
os.cpu_count = lambda: len(os.sched_getaffinity(0))
print(hardware.pin_cores(int(sys.argv[1]), int(sys.argv[2])), os.sched_getaffinity(0))
"""


def _pinned(rank, size):
    """Returns the result of `pin_cores` and the affinity after it, in a separate process."""
    done = subprocess.run([sys.executable, "-c", PIN, str(rank), str(size)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_each_worker_of_a_machine_gets_its_share_of_the_cores(monkeypatch):
    allowed = sorted(os.sched_getaffinity(0))
    half = len(allowed) // 2
    if half:
        assert _pinned(1, 2) == f"{set(allowed)} {set(allowed[half : 2 * half])}"
    assert _pinned(0, 1) == f"None {set(allowed)}"
    assert _pinned(0, len(allowed) + 1) == f"None {set(allowed)}"
    monkeypatch.setattr(os, "cpu_count", lambda: 10_000)
    assert hardware.pin_cores(0, 2) is None
    assert sorted(os.sched_getaffinity(0)) == allowed


@pytest.mark.parametrize(
    ("quota", "cores"), [("300000 100000\n", 3), ("50000 100000", 1), ("max 100000", 8), ("1600000 100000", 8), ("", 8)]
)
def test_a_container_has_the_cores_of_its_cpu_quota(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(8)})
    (tmp_path / "cpu.max").write_text(quota)
    assert hardware.usable_cores(tmp_path / "cpu.max") == cores
    assert hardware.usable_cores(tmp_path / "nowhere") == 8


def _niceness():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_thread_that_steps_back_has_its_cores_and_waits_for_the_others():
    before, niceness, found = os.sched_getaffinity(0), _niceness(), []

    def work(cores):
        hardware.step_back(cores)
        found.append((os.sched_getaffinity(0), _niceness()))

    for cores in ({min(before)}, None):
        thread = threading.Thread(target=work, args=(cores,))
        thread.start()
        thread.join(60)
    behind = min(niceness + hardware.BEHIND, 19)
    assert found == [({min(before)}, behind), (before, behind)]
    assert (os.sched_getaffinity(0), _niceness()) == (before, niceness)


@pytest.mark.parametrize("flags, expected", [("fpu avx512_bf16", True), ("fpu amx_bf16", True), ("fpu avx2", False)])
def test_bfloat16_is_found_among_the_processors_flags(tmp_path, flags, expected):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags} sse\n\nprocessor\t: 1\n")
    assert hardware.has_bfloat16(tmp_path / "cpuinfo") is expected
    assert hardware.has_bfloat16(tmp_path / "none") is False
