"""The size and the checksum of a file."""

import zlib

_BLOCK = 1 << 22


def bytes_and_crc32(path):
    """-> (number of bytes, CRC-32) of the file at a `Path`, which is read once."""
    size = crc32 = 0
    for block in path.blocks(_BLOCK):
        crc32, size = zlib.crc32(block, crc32), size + len(block)
    return size, crc32
