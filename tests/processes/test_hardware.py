"""Pinning and what the processor offers."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes import hardware
from ctr_trainer.ranks import distributed

PIN = """
import os, sys
from ctr_trainer.processes import hardware
os.cpu_count = lambda: len(os.sched_getaffinity(0))
print(hardware.pin_cores(int(sys.argv[1]), int(sys.argv[2])), os.sched_getaffinity(0))
"""


def _pinned(rank, size):
    """-> what `pin_cores` returned and the affinity after it, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", PIN, str(rank), str(size)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity of processes to cores")
def test_each_worker_of_a_machine_gets_its_share_of_the_cores():
    allowed = sorted(os.sched_getaffinity(0))
    half = len(allowed) // 2
    if half:
        assert _pinned(1, 2) == f"{set(allowed)} {set(allowed[half : 2 * half])}"
    assert _pinned(0, 1) == f"None {set(allowed)}"
    assert _pinned(0, len(allowed) + 1) == f"None {set(allowed)}"


def test_cores_that_somebody_else_handed_out_are_left_alone(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 10_000)
    before = os.sched_getaffinity(0)
    assert hardware.pin_cores(0, 2) is None
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("flags, expected", [("fpu avx512_bf16", True), ("fpu amx_bf16", True), ("fpu avx2", False)])
def test_bfloat16_is_found_among_the_processors_flags(tmp_path, flags, expected):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags} sse\n\nprocessor\t: 1\n")
    assert hardware.has_bfloat16(tmp_path / "cpuinfo") is expected
    assert hardware.has_bfloat16(tmp_path / "none") is False


def test_bfloat16_is_refused_where_the_processor_has_none(monkeypatch):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: False)
    with pytest.raises(UserError, match="--mixed_precision=bfloat16: this processor has no instructions"):
        distributed.session_config(1, "bfloat16")


@pytest.mark.skipif(not hardware.has_bfloat16(), reason="this processor has no bfloat16 instructions")
def test_bfloat16_rounds_the_factors_of_matrix_products_and_nothing_else():
    with tf.Graph().as_default():
        a, b = (tf.compat.v1.placeholder(tf.float32, [64, 64]) for _ in range(2))
        product, total = tf.matmul(tf.nn.relu(tf.matmul(a, b)), b), a + b
        with tf.compat.v1.Session(config=distributed.session_config(1, "bfloat16")) as session:
            # 1 + 2^-12 has no bfloat16: it becomes 1.
            ones, fine = [[1.0] * 64] * 64, [[1 + 2.0**-12] * 64] * 64
            products, totals = session.run([product, total], {a: fine, b: ones})
    assert products[0, 0] == 64.0 * 64.0
    assert totals[0, 0] == 2 + 2.0**-12
