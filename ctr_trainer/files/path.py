"""What the package asks of a path, on a local disk or in a store."""

from typing import Protocol


class Path(Protocol):
    """A path of a file or a directory; `paths.path_of` makes one.

    `/`, `name`, `stem`, `suffix`, `parent`, `parents`, `with_name`, `exists`, `is_file`, `is_dir`, `is_symlink`,
    `iterdir`, `glob`, `mkdir`, `unlink`, `rmdir`, `read_bytes`, `resolve`, `absolute`, `is_relative_to` and `match` are
    those of `pathlib.Path`. A store has no directories: there `mkdir` and `rmdir` do nothing, and a directory is what
    has files below it. `str` gives the text that `path_of` takes.

    Attributes:
      lock_name: name of the file that `lock` locks.
    """

    lock_name: str

    def matches(self):
        """-> the paths that match this one as a pattern, sorted; `*`, `?` and `[...]` do not match a `/`."""

    def files(self):
        """-> names of the files below this directory, relative to it, sorted by their parts. No directory is followed
        that is a link."""

    def entries(self):
        """-> as `files`, with the links that lead to directories or nowhere."""

    def size(self):
        """-> number of bytes of a file."""

    def stamp(self):
        """-> (number of bytes, time of the last change in ns) of a file: when it changes, this does."""

    def open_input(self):
        """-> a `pa.NativeFile` for reading at any place: a memory map, or one that asks a store for ranges."""

    def blocks(self, size):
        """Yields the file's bytes, `size` at a time; what was read does not stay in memory."""

    def open_stream(self):
        """-> a `pa.NativeFile` for reading from the beginning on; .gz, .bz2 and .zst are decompressed."""

    def open_parquet(self, **options):
        """-> the open `pq.ParquetFile`; `options` are more of its own."""

    def writing(self, direct=False):
        """A context manager. Gives a binary file, whose bytes are this one's once the block has ended.

        On a local disk see `durable_file.replacing`. In a store the file is there when the block has ended, and what
        was there before stays until then; if the block raises, there is no file.

        Args:
          direct: whether a local file is a `DirectFile`: for many bytes that nobody reads soon.
        """

    def write_text(self, text):
        """Makes this a file of the text, whole or not at all. Makes its directory."""

    def write_json(self, values, indent=1):
        """As `durable_file.write_json`."""

    def read_json(self, cure):
        """As `durable_file.read_json`."""

    def append(self, text):
        """Adds a text at the end of a file; it is on the disk, or in the store, when this returns."""

    def lock(self):
        """Locks a file for this process. Makes the file if there is none. -> what `close` unlocks

        Raises:
          BlockingIOError: another process has the lock.
        """

    def hold(self, refusal):
        """As `lock`, by a file that names this process and is nothing else. See `lease.hold` for `refusal`.

        -> a lock with `close`, which removes the file, and `check`, which raises UserError if the lock was lost.

        Raises:
          UserError: another process has the lock.
        """

    def copy_from(self, source):
        """Makes this file one with the bytes of `source`, a path of the same kind."""

    def share(self, source):
        """As `copy_from`, without a copy of the bytes if the disk can give one file two names."""

    def sync(self):
        """Waits until a file's bytes, or a directory's list of files, are on the disk."""

    def move_to(self, target, seal):
        """Renames this directory to `target`, which is not there. `seal` names the file that says that it is whole:
        it comes last and goes first."""

    def remove_all(self):
        """Removes a directory with all files below it, as far as it is there."""

    def filled_locally(self):
        """A context manager. Gives a local directory; the files made in it are in this directory at the block's end."""

    def local_files(self, names):
        """A context manager. Gives a local directory that has files of this one, by their names."""

    def upload(self, local):
        """Makes this file one with the bytes of a local file."""

    def local_file(self):
        """A context manager. Gives the path of a local file with the bytes of this one."""
