"""The limits of cgroups, as the kernel's files say them, and the warning near them."""

import logging

import psutil
import pytest

from ctr_trainer.embedding.memory.memory_limits import MemoryLimit, MemoryWatch, memory_limits, memory_total

V1 = {
    "limit_in_bytes": "1000000",
    "usage_in_bytes": "700000",
    "stat": "cache 300000\ntotal_active_file 100000\ntotal_inactive_file 200000\n",
}
V2 = {"max": "1000000", "current": "700000", "stat": "anon 1\nactive_file 100000\ninactive_file 200000\n"}


def _cgroup(directory, files):
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / f"memory.{name}").write_text(text)


@pytest.mark.parametrize(
    ("line", "place", "files"),
    [
        ("4:memory:/job/7", "memory/job/7", V1),
        ("4:memory:/job/7", "memory/job", V1),  # Of the group around it.
        ("4:cpu,memory:/docker/abc", "memory", V1),  # Within a container the path is the host's.
        ("0::/job/7", "job/7", V2),
        ("0::/", "", V2),
    ],
)
def test_the_limit_of_a_cgroup_counts_and_pages_of_files_do_not(tmp_path, line, place, files):
    (tmp_path / "own").write_text(f"1:cpu:/\n{line}\n")
    _cgroup(tmp_path / "root" / place, files)
    machine, cgroup = memory_limits(tmp_path / "own", tmp_path / "root")
    assert machine.total == psutil.virtual_memory().total
    assert cgroup == MemoryLimit(f"the cgroup {tmp_path / 'root' / place}".rstrip("/"), 1_000_000, 400_000)
    assert cgroup.free == 600_000


@pytest.mark.parametrize("limit", ["max", str(2**63 - 4096), "nonsense"])
def test_a_cgroup_without_a_limit_is_none_and_this_process_has_one(tmp_path, limit):
    (tmp_path / "own").write_text("0::/job\n")
    _cgroup(tmp_path / "job", {**V2, "max": limit})
    assert len(memory_limits(tmp_path / "own", tmp_path)) == 1
    assert len(memory_limits(tmp_path / "nothing", tmp_path)) == 1
    assert 0 < memory_total() <= psutil.virtual_memory().total


def test_it_is_warned_once_at_nine_tenths_and_anew_after_less(caplog):
    used = iter([0.5, 0.91, 0.95, 0.85, 0.92, 0.7, 0.9])
    limits = lambda: [MemoryLimit("this machine", 100, 1), MemoryLimit("the cgroup /job", 1000, 1000 * next(used))]  # noqa: E731
    watch = MemoryWatch("this service", limits)
    with caplog.at_level(logging.WARNING):
        for _ in range(7):
            watch.look()
    assert [record.getMessage()[:38] for record in caplog.records] == [
        "91% of the memory of the cgroup /job i",
        "90% of the memory of the cgroup /job i",
    ]
