import errno
import fcntl
import os

import numpy as np
import pytest

from ctr_trainer.system.files import durable_file
from ctr_trainer.system.files.durable_file import DirectFile
from ctr_trainer.system.files.paths import path_of

BUFFER = durable_file._BUFFER_BYTES
SIZES = (0, 1, 4096, BUFFER - 1, BUFFER, BUFFER + 4097, 3 * BUFFER + 5)


def _bytes(size):
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()


@pytest.mark.parametrize("size", SIZES)
def test_a_file_has_the_bytes_that_were_written_in_whatever_pieces(tmp_path, size):
    data, at = _bytes(size), 0
    with DirectFile(tmp_path / "file") as file:
        for piece in (0, 1, 700, 5000, BUFFER, 4096, len(data)):
            at += file.write(data[at : at + piece])
        file.flush()
    assert (tmp_path / "file").read_bytes() == data


def test_arrays_are_bytes_as_they_lie_in_memory(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    with DirectFile(tmp_path / "file") as file:
        assert file.write(rows) == rows.nbytes
    assert (tmp_path / "file").read_bytes() == rows.tobytes()


def test_a_large_file_passes_the_cache_and_a_small_one_does_not(tmp_path):
    with DirectFile(tmp_path / "small") as file:
        file.write(_bytes(BUFFER - 1))
        assert not file._is_direct
    with DirectFile(tmp_path / "large") as file:
        file.write(_bytes(BUFFER))
        assert bool(fcntl.fcntl(file._file, fcntl.F_GETFL) & os.O_DIRECT) == file._is_direct
    assert (tmp_path / "large").stat().st_size == BUFFER


def test_a_disk_that_takes_other_blocks_gets_the_bytes_through_the_cache(tmp_path, monkeypatch):
    write, refused = os.write, []

    def picky(file, data):
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(len(data))
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(file, data)

    with DirectFile(tmp_path / "file") as file:
        monkeypatch.setattr(os, "write", picky)
        file.write(_bytes(3 * BUFFER + 5))
        assert not file._is_direct
    assert (tmp_path / "file").read_bytes() == _bytes(3 * BUFFER + 5)
    if not refused:
        pytest.skip("the file system of the temporary files has no O_DIRECT")
    assert refused == [BUFFER]


def test_a_partial_write_continues_and_direct_io_is_not_required(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:8192]))
    with DirectFile(tmp_path / "file") as file:
        file.write(_bytes(BUFFER + 20_000))
    assert (tmp_path / "file").read_bytes() == _bytes(BUFFER + 20_000)

    def refused(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", refused)
    with DirectFile(tmp_path / "cached") as file:
        file.write(_bytes(BUFFER + 5))
    assert (tmp_path / "cached").read_bytes() == _bytes(BUFFER + 5)


def test_a_path_is_whole_or_missing_whatever_fails(tmp_path, monkeypatch):
    with DirectFile(tmp_path / "file") as file:
        file.write(b"first")
    with pytest.raises(FileExistsError):
        DirectFile(tmp_path / "file")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = path_of(tmp_path / "other")
    with pytest.raises(ZeroDivisionError), path.writing(direct=True) as file:
        file.write(_bytes(100))
        raise ZeroDivisionError
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"), path.writing(direct=True) as file:
            file.write(_bytes(100))
    assert os.listdir(tmp_path) == ["file"]
    with path.writing(direct=True) as file:
        file.write(_bytes(100))
    assert path.read_bytes() == _bytes(100)
