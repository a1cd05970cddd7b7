"""A file that is written past the system's cache of files."""

import errno
import fcntl
import mmap
import os

# Bytes of a write: large enough for the disk's full speed.
_BUFFER_BYTES = 2 << 20
# What the disk takes is a multiple of this, and lies in memory at one.
_BLOCK_BYTES = 4096


class DirectFile:
    """A new file whose bytes go from this process's memory to the disk (Linux's O_DIRECT).

    What goes through the system's cache of files is copied into memory that is new each time, and stays there though
    nobody may ever read it: 400 MB of a checkpoint took 0.1 to 1.3 s of a core's time, and take 0.05 s this way. Where
    a file system does not have it, the bytes go through the cache.

    A file of less than 2 MiB goes through the cache.

    Caveat: the bytes are all in the file once it is closed, not at a `flush`.

    Args:
      path: of a file that is not there.
    """

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)
        self._filled = self._size = 0
        self._is_direct = False

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self._finish()
        finally:
            os.close(self._file)
            self._buffer = None  # Not closed: an error on its way may still refer to a part of it.

    def write(self, data):
        """Adds bytes, a buffer. -> how many"""
        with memoryview(data).cast("B") as data:
            done = 0
            while done < len(data):
                some = min(len(data) - done, _BUFFER_BYTES - self._filled)
                self._buffer[self._filled : self._filled + some] = data[done : done + some]
                self._filled, done = self._filled + some, done + some
                if self._filled == _BUFFER_BYTES:
                    if not self._size:
                        self._pass_the_cache()
                    self._write_out(_BUFFER_BYTES)
            return done

    def flush(self):
        """Does nothing: the disk takes whole blocks only."""

    def _pass_the_cache(self):
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_DIRECT)
            self._is_direct = True
        except (AttributeError, OSError):
            pass  # Neither all systems nor all file systems have it.

    def _finish(self):
        size = self._size + self._filled
        self._write_out(self._filled + (-self._filled % _BLOCK_BYTES if self._is_direct else 0))
        os.ftruncate(self._file, size)

    def _write_out(self, count):
        """Writes the first bytes of the buffer."""
        with memoryview(self._buffer) as buffer:
            done = 0
            while done < count:
                try:
                    done += os.write(self._file, buffer[done:count])
                except OSError as error:
                    if error.errno != errno.EINVAL or not self._is_direct:
                        raise
                    fcntl.fcntl(self._file, fcntl.F_SETFL, 0)  # The disk's blocks are other ones.
                    self._is_direct = False
        self._size, self._filled = self._size + count, 0
