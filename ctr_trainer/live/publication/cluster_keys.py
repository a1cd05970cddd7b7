"""The names of a publication's data in a Redis or Valkey cluster.

    {NAME}fence, {NAME}generation, {NAME}state, {NAME}tower:GENERATION:VERSION       all in one slot
    {00a3}NAME:GENERATION:TABLE:KEY                                                  a row; KEY is 8 little-endian bytes
    {00a3}NAME:GENERATION:mark                                                       see `cluster_contents`

Rows are spread over 1,024 buckets, each in a slot of its own. One command accesses many rows of a bucket, and each node
has a share of the buckets.
"""

import binascii

import numpy as np

from ctr_trainer.embedding.index.key_kernels import shard_of

BUCKETS = 1024
_SLOTS = 16384
_TAGS = [b"{%04x}" % bucket for bucket in range(BUCKETS)]
_TAG_BYTES = np.frombuffer(b"".join(_TAGS), np.uint8).reshape(BUCKETS, -1)
_KNOWN_TAGS = frozenset(_TAGS)
# Only the text between the braces is hashed.
SLOTS = [binascii.crc_hqx(tag[1:-1], 0) % _SLOTS for tag in _TAGS]


def buckets_of(keys: np.ndarray) -> np.ndarray:
    """Returns int32[n], the buckets of int64[n] keys."""
    buckets = np.empty(len(keys), np.int32)
    shard_of(np.require(keys, np.int64, ("C", "A")), BUCKETS, buckets)
    return buckets


def row_names(name: str, generation: int, table: str, keys: np.ndarray, buckets: np.ndarray) -> list[bytes]:
    """Returns the names of the rows of int64[n] keys with int32[n] buckets."""
    middle = np.frombuffer(f"{name}:{generation}:{table}:".encode(), np.uint8)
    names = np.empty((len(keys), _TAG_BYTES.shape[1] + len(middle) + 8), np.uint8)
    names[:, : _TAG_BYTES.shape[1]] = _TAG_BYTES[buckets]
    names[:, _TAG_BYTES.shape[1] : -8] = middle
    names[:, -8:] = np.require(keys, "<i8", ("C",)).view(np.uint8).reshape(-1, 8)
    return as_bytes(names)


def rows_pattern(name: str) -> str:
    """Returns the pattern that matches the names of the rows and marks of all generations."""
    return f"{{????}}{name}:*"


def generation_of(name: str, row: bytes) -> int | None:
    """Returns the generation in a name that matches `rows_pattern`; None if it names neither a row nor a mark."""
    tag, rest = row[: _TAG_BYTES.shape[1]], row[_TAG_BYTES.shape[1] + len(name.encode()) + 1 :]
    found = rest.split(b":", 1)
    return int(found[0]) if tag in _KNOWN_TAGS and len(found) == 2 and found[0].isdigit() else None


def bucket_of(row: bytes) -> int:
    return int(row[1:5], 16)


def mark_name(name: str, generation: int, bucket: int) -> bytes:
    return _TAGS[bucket] + f"{name}:{generation}:mark".encode()


def control_name(name: str, what: str) -> str:
    """Returns the full name of `fence`, `generation`, `state` or a tower."""
    return f"{{{name}}}{what}"


def as_bytes(values: np.ndarray) -> list[bytes]:
    """Returns the rows of a uint8[n, width] array as bytes."""
    return np.ascontiguousarray(values).view(f"V{values.shape[1]}").ravel().tolist()
