"""Rows on a disk that is full, slow, refuses direct reads or writes, or is shared, and of a process that is killed."""

import contextlib
import dataclasses
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from ctr_trainer.embedding.table import rocks
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import hardware
from tests.embedding.table.test_cold_rows import CONFIG, make, rows_of, step

WIDE = dataclasses.replace(CONFIG, dims=(64, 1))
MEMORY = 300 * (WIDE.form.nbytes + 32)
CHUNK = 20  # Steps from one snapshot to the next.
THROTTLE = pathlib.Path("/sys/fs/cgroup/blkio")


@contextlib.contextmanager
def mounted(directory, kind, options="rw"):
    directory.mkdir()
    done = subprocess.run(["mount", "-t", kind, "-o", options, "none", directory], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting {kind} is not permitted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def resize(directory, megabytes):
    subprocess.run(["mount", "-o", f"remount,size={megabytes}m", directory], check=True)


def train(store, numbers, directory=None, files=()):
    """Trains the steps of each chunk, and saves the rows after it in a chain, which it returns."""
    for number in numbers:
        rng = np.random.default_rng(number)
        for _ in range(CHUNK):
            step(store, rng, 400)
        if directory:
            since = files[-1]["snapshot"] if files else None
            files = [each for each in files if each["kind"] != "cold"] + store.save(directory, number, since=since)
            LocalPath(directory / "last.json").write_json({"number": number, "files": files})
    return files


@pytest.mark.parametrize("size", [4, 9])
def test_a_full_disk_is_named_and_the_rows_of_the_last_snapshot_are_kept(tmp_path, size):
    """The disk has no space left for new rows, or for the merged files, without which RocksDB would wait for ever."""
    with mounted(tmp_path / "small", "tmpfs", "size=32m") as small:
        store, saved = make(small, WIDE, MEMORY), tmp_path / "saved"
        files = train(store, [0], saved)  # Until then a busy machine may have merged no file.
        store.tables[WIDE.name].cold._db.compact_range(None, None)
        resize(small, size)
        match = r"rows on disk in .*small: .*(No space.*|too large); free some space .* name another table_dir"
        with pytest.raises(UserError, match=match):
            train(store, range(1, 1000), saved, files)
        store.close()
        last = LocalPath(saved / "last.json").read_json("")
        (small / "other").write_bytes(bytes(size * 1_000_000 - 100_000))
        store = make(small, WIDE, MEMORY)
        with pytest.raises(UserError, match=r"small.*No space left on device; .* name another table_dir"):
            store.restore(saved, last["files"])
        (small / "other").unlink()
        resize(small, 32)
        store.restore(saved, last["files"])
        in_memory = make(config=WIDE)
        train(in_memory, range(last["number"] + 1))
        np.testing.assert_array_equal(rows_of(store), rows_of(in_memory))
        store.close()


@pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
def test_rows_are_copied_once_to_another_file_system(tmp_path, kind, monkeypatch):
    """ramfs refuses direct reads, as tmpfs of older kernels does."""
    check_copies(tmp_path, kind, tmp_path, monkeypatch)


def test_rows_are_copied_once_to_a_store(tmp_path, store, monkeypatch):
    check_copies(tmp_path, "tmpfs", path_of("s3://tests"), monkeypatch)


def check_copies(tmp_path, kind, root, monkeypatch):
    in_memory = make(config=WIDE)
    train(in_memory, range(4))
    with mounted(tmp_path / kind, kind) as disk:
        store, places = make(disk, WIDE, MEMORY), [root / "first", root / "second"]
        train(store, range(3))
        store.tables[WIDE.name].cold._db.compact_range(None, None)  # No file changes after this.
        first = store.save(places[0], 1)
        read, blocks = [], LocalPath.blocks
        monkeypatch.setattr(LocalPath, "blocks", lambda path, size: read.append(path.name) or blocks(path, size))
        second = store.save(places[1], 1)
        kept = {each["file"] for each in first if each["file"].endswith(".sst")} & {each["file"] for each in second}
        assert kept and not [name for name in read if any(file.endswith(name) for file in kept)]
        again = make(disk, WIDE, MEMORY)
        again.restore(places[1], second)
        for each in (store, again):
            train(each, [3])
            np.testing.assert_array_equal(rows_of(each), rows_of(in_memory))
            each.close()
        assert os.listdir(disk) == []


def test_a_disk_that_cannot_be_written_is_named(tmp_path):
    with mounted(tmp_path / "fixed", "tmpfs", "ro") as fixed:
        with pytest.raises(UserError, match="table_dir=.*fixed: Read-only file system; name a directory"):
            make(fixed)


def test_more_files_than_the_soft_limit_are_open_and_the_hard_limit_is_named(tmp_path, monkeypatch):
    options, limits = rocks.options, resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 50  # Files that may be opened.

    def of_small_files(*arguments):
        found = options(*arguments)
        found.set_target_file_size_base(1 << 14)
        return found

    def fill(directory):
        with open(os.devnull) as first_free:
            resource.setrlimit(resource.RLIMIT_NOFILE, (first_free.fileno() + most, limits[1]))
        store = make(directory, WIDE, MEMORY)
        try:
            train(store, range(3))
            store.tables[WIDE.name].cold._db.compact_range(None, None)
            assert len(store.tables[WIDE.name].cold._db.live_files()) > most
            rows_of(store)
        finally:
            store.close()

    monkeypatch.setattr(rocks, "options", of_small_files)
    try:
        fill(tmp_path / "raised")
        monkeypatch.setattr(hardware, "allow_open_files", lambda: None)
        with pytest.raises(UserError, match="Too many open files; raise the limit .*ulimit -n"):
            fill(tmp_path / "low")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def child(*arguments, **more):
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **more)


def test_a_kill_during_compaction_loses_no_row_here_and_of_another_process(tmp_path):
    disk, saved = tmp_path / "disk", tmp_path / "saved"
    other, in_memory = make(disk, WIDE, MEMORY), make(config=WIDE)
    train(other, range(2))
    (disk / "notes.txt").write_text("a user's")
    for _ in range(3):
        assert child("kill", disk, saved).returncode == -signal.SIGKILL
        assert len(os.listdir(disk)) == 3
    last = LocalPath(saved / "last.json").read_json("")
    store = make(disk, WIDE, MEMORY)
    store.restore(saved, last["files"])
    train(store, [last["number"] + 1])
    train(in_memory, range(2))
    np.testing.assert_array_equal(rows_of(other), rows_of(in_memory))
    train(in_memory, range(2, last["number"] + 2))
    np.testing.assert_array_equal(rows_of(store), rows_of(in_memory))
    store.close()
    other.close()
    assert os.listdir(disk) == ["notes.txt"]


def test_a_slow_disk_only_takes_longer(tmp_path):
    group = THROTTLE / f"ctr_trainer-{os.getpid()}"
    device = os.stat(tmp_path).st_dev
    try:
        group.mkdir()
        for limit, most in (("write_bps", 2_000_000), ("read_iops", 300)):
            file = group / f"blkio.throttle.{limit}_device"
            file.write_text(f"{os.major(device)}:{os.minor(device)} {most}")
    except OSError as error:
        pytest.skip(f"a disk cannot be slowed down here: {error}")
    try:
        child("slow", tmp_path / "disk", tmp_path / "saved", check=True, preexec_fn=lambda: _join(group))
    finally:
        group.rmdir()
    last = LocalPath(tmp_path / "saved" / "last.json").read_json("")
    in_memory = make(config=WIDE)
    train(in_memory, range(last["number"] + 1))
    store = make(config=WIDE)
    store.restore(tmp_path / "saved", last["files"])
    np.testing.assert_array_equal(rows_of(store), rows_of(in_memory))


def _join(group):
    (group / "cgroup.procs").write_text(str(os.getpid()))


def main(what, disk, saved):
    """Resumes from the last snapshot, and trains two more chunks; `kill` ends it while RocksDB compacts after those."""
    store = make(disk, WIDE, MEMORY)
    last, saved = {"number": -1, "files": []}, pathlib.Path(saved)
    if saved.exists():
        last = json.loads((saved / "last.json").read_text())
        store.restore(saved, last["files"])
    number = last["number"] + 1
    train(store, range(number, number + 2), saved, last["files"])
    if what == "kill":
        database = store.tables[WIDE.name].cold._db
        rng = np.random.default_rng(0)
        while True:
            step(store, rng, 400)
            if database.property_int_value("rocksdb.num-running-compactions"):
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
