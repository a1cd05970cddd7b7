"""How rows and their changes are encoded between a worker's cache and its store."""

import abc

import numpy as np

from ctr_trainer.embedding.store import half
from ctr_trainer.messages.errors import UserError


class RowCodec(abc.ABC):
    """The interface of the codecs: each turns rows of float32 into the array that travels, and back.

    Attributes:
      name: the codec's name in `--sync_compression` and in requests to the service.
      is_exact: whether decoded rows equal the rows before encoding, bit by bit. If a codec is not exact, the worker
        keeps what it rounds away from a change, see `CachedRows.take`.
    """

    name: str
    is_exact: bool

    @abc.abstractmethod
    def encode(self, rows):
        """float32[n, width], finite -> an array of the dtype and columns that `schema` gives."""

    @abc.abstractmethod
    def decode(self, encoded):
        """An array from `encode`, contiguous or not, aligned or not -> float32[n, width], C-contiguous."""

    @abc.abstractmethod
    def schema(self, width):
        """-> (dtype, columns) of the array [n, columns] that rows of `width` floats are encoded as."""


class PlainCodec(RowCodec):
    """Rows as they are; neither way makes a copy."""

    name = "none"
    is_exact = True

    def encode(self, rows):
        return rows

    def decode(self, encoded):
        """As `RowCodec.decode`. Rows that are not aligned are not copied: the kernels of a merge take them as well."""
        return np.require(encoded, requirements=("C",))

    def schema(self, width):
        return "<f4", width


class Float16Codec(RowCodec):
    """Rows as float16, 11 bits a value in half the bytes; each row goes with its power of two, see `half`."""

    name = "fp16"
    is_exact = False

    def encode(self, rows):
        return half.pack(rows)

    def decode(self, encoded):
        return half.unpack(encoded)

    def schema(self, width):
        return "<f2", width + 1


PLAIN = PlainCodec()
CODECS = {codec.name: codec for codec in (PLAIN, Float16Codec())}


def find_codec(name):
    """-> the RowCodec of that name.

    Raises:
      UserError: there is no codec of that name; the message names the codecs.
    """
    if name not in CODECS:
        raise UserError(
            f"sync_compression {name!r} is not one of {', '.join(CODECS)}: give one of these, and run workers and "
            "service of one version"
        )
    return CODECS[name]
