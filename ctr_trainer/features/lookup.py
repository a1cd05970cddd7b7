"""The `[[lookup]]` and `[[pretrained]]` of a feature spec: values in a file, by the value of a column."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import posixpath
import typing
from collections.abc import Iterator

from ctr_trainer.system.files.paths import Path, is_local, path_of
from ctr_trainer.system.messages.errors import UserError, reason

if typing.TYPE_CHECKING:
    from typing_extensions import Self

_MOST_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class LookupColumns:
    """Columns that features read like columns of the source data.

    Attributes:
      name: name of the column; with a `length`, the names are `<name>1` to `<name><length>`.
      file: path or URL of a Parquet file, or of a CSV file with a header. It is no part of the spec's identity.
      key: column of the source data.
      value: column of the file; by default the name.
      file_key: column of the file whose values are those of `key`; by default its name.
      length: number of numbers in each list of `value`; 0 for a column of single values.
      sha256: hash of the file's bytes, which is part of the spec's identity.

    Raises:
      UserError: the length is negative.
    """

    section: typing.ClassVar[str] = "[[lookup]]"

    name: str
    file: str = dataclasses.field(compare=False)
    key: str
    value: str = ""
    file_key: str = ""
    length: int = 0
    sha256: str = ""

    def __post_init__(self) -> None:
        if self.length < 0:
            raise UserError(f"length {self.length} is negative; 0 is for a column of single values")
        object.__setattr__(self, "value", self.value or self.name)
        object.__setattr__(self, "file_key", self.file_key or self.key)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it makes."""
        return tuple(f"{self.name}{place}" for place in range(1, self.length + 1)) if self.length else (self.name,)

    def found(self, directory: str | os.PathLike[str]) -> "Self":
        """Returns the lookup with its file relative to a directory made absolute, and with the file's hash."""
        file = os.path.abspath(os.path.join(directory, self.file)) if is_local(self.file) else self.file
        found = dataclasses.replace(self, file=file)
        if self.sha256:
            return found
        with found._reading() as stamp:
            return dataclasses.replace(found, sha256=_hash_of(file, stamp))

    def read(self) -> bytes:
        """Returns the bytes of the file.

        Raises:
          UserError: the file cannot be read, is too large, or is not the one of the spec.
        """
        with self._reading():
            data = path_of(self.file).read_bytes()
        if (digest := hashlib.sha256(data).hexdigest()) != self.sha256:
            raise self.refused(
                f"its SHA-256 begins with {digest[:12]}, and the feature spec of the model or data has "
                f"{self.sha256[:12]}; put that file back, or convert and train again with this one"
            )
        return data

    def refused(self, why: str) -> UserError:
        return UserError(f"{self.file}, the file of {self.section} {self.name!r}: {why}")

    def in_directory(self, directory: Path) -> "Self":
        """Returns the lookup with its file's copy in a directory, if there is one."""
        copy = directory / self.name_of_copy
        return dataclasses.replace(self, file=str(copy)) if copy.is_file() else self

    def copy_to(self, directory: Path) -> None:
        """Copies the file to a directory of data, of a model or of an export."""
        copy = directory / self.name_of_copy
        if not copy.is_file():
            data = self.read()
            with copy.writing() as file:
                file.write(data)

    @property
    def name_of_copy(self) -> str:
        return f"_lookup-{self.sha256[:16]}{posixpath.splitext(self.file)[1]}"

    @contextlib.contextmanager
    def _reading(self) -> Iterator[tuple[int, int]]:
        """Yields the stamp of the file, to read it. Raises UserError if it is too large or cannot be read."""
        try:
            stamp = path_of(self.file).stamp()
            check_size(self.file, stamp[0])
            yield stamp
        except OSError as error:
            raise self.refused(f"{reason(error)}; put a readable copy of the file there") from error


@dataclasses.dataclass(frozen=True)
class Pretrained(LookupColumns):
    """The vectors with which the rows of a sparse feature's values begin.

    Attributes:
      name: name of the feature. All features of its slot share the rows.
      key: column of the file with the feature's values.
      value: column of the file with a list of `dim` numbers per value.
      trained: whether the vectors of the file are trained. The rows of other values always are.
    """

    section: typing.ClassVar[str] = "[[pretrained]]"

    trained: bool = True


@functools.lru_cache
def _hash_of(file: str, stamp: tuple[int, int]) -> str:
    """Returns the hash of a file, which is read once as long as its stamp is the same."""
    return hashlib.sha256(path_of(file).read_bytes()).hexdigest()


def check_size(file: str, size: int) -> None:
    """Raises UserError if a file, or the values that were read from it, are too large."""
    if size > _MOST_BYTES:
        raise UserError(
            f"{file}: {size:,} bytes, and a [[lookup]] reads at most {_MOST_BYTES:,}, because an export contains the "
            "values: write a smaller file, or fewer and shorter values"
        )
