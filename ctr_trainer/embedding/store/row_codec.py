"""How rows and their changes are encoded between a worker's cache and its store."""

import abc

import numpy as np

from ctr_trainer.embedding.store import half
from ctr_trainer.messages.errors import UserError


class RowCodec(abc.ABC):
    """The interface of the codecs: rows of float32 to what travels, and back.

    Attributes:
      name: what `--sync_compression`, and a request to the service, call it.
      is_exact: whether decoded rows equal the encoded ones, to the bit. What another codec rounds away from a change
        is for the worker to keep, see `CachedRows.take`.
    """

    name: str
    is_exact: bool

    @abc.abstractmethod
    def encode(self, rows):
        """float32[n, width], finite -> an array as `schema` says."""

    @abc.abstractmethod
    def decode(self, encoded):
        """What `encode` made, C-contiguous or not and at any byte -> float32[n, width], C-contiguous."""

    @abc.abstractmethod
    def schema(self, width):
        """-> (dtype as it travels, columns) of the encoded rows of `width` floats: an array [n, columns]."""


class PlainCodec(RowCodec):
    """Rows as they are; neither way makes a copy."""

    name = "none"
    is_exact = True

    def encode(self, rows):
        return rows

    def decode(self, encoded):
        """As RowCodec; rows that lie at any byte stay there, as the kernels of a merge take them."""
        return np.require(encoded, requirements=("C",))

    def schema(self, width):
        return "<f4", width


class Float16Codec(RowCodec):
    """Rows as float16, each beside the power of two that it is scaled by, see `half`: 11 bits in half the bytes."""

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
      UserError: there is none; says which there are, and what to do.
    """
    if name not in CODECS:
        raise UserError(
            f"sync_compression {name!r} is not one of {', '.join(CODECS)}: give one of these, and run workers and "
            "service of one version"
        )
    return CODECS[name]
