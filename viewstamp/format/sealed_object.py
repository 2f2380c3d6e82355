"""An encrypted object of an archive: a header in clear text, then authenticated chunks.

The cipher is AES-256-GCM. The key of each object is HKDF-SHA256 of the key of the archive with the
salt and the information "viewstamp archive object". Integers are unsigned and little-endian.

====== ==== ================================================================================
offset size sealed header
====== ==== ================================================================================
0      4    magic, the ASCII letters "VSSE"
4      2    format version, 1
6      2    reserved, zero
8      4    chunk_bytes: bytes of clear text in each chunk but the last
12     4    reserved, zero
16     16   key_id: which key it is, and nothing that leads to it
32     32   salt, random for each object
64          chunks: the encrypted bytes, then 16 bytes of authentication
====== ==== ================================================================================

The nonce of a chunk has 12 bytes: its number from 0 on (8), and 1 for the last chunk, else 0 (4).
The header is the additional data of each chunk. So chunks that are lost, added, moved or changed,
also at the end, do not decrypt. An object without content has one empty chunk.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from viewstamp.format import FormatError, FormatVersionError
from viewstamp.limits import KIB

SEALED_MAGIC: Final = b"VSSE"
SEALED_VERSION: Final = 1
SEALED_HEADER_BYTES: Final = 64
CHUNK_BYTES: Final = 64 * KIB
TAG_BYTES: Final = 16
KEY_ID_BYTES: Final = 16
SALT_BYTES: Final = 32

_HEADER: Final = struct.Struct("<4sHHII16s32s")
_NONCE: Final = struct.Struct("<QI")
assert _HEADER.size == SEALED_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class SealedObjectHeader:
    """Which key an object needs, and how it is divided."""

    key_id: bytes
    salt: bytes
    chunk_bytes: int = CHUNK_BYTES

    def stored_chunk_bytes(self) -> int:
        """Return the bytes of a chunk but the last, as it is stored."""
        return self.chunk_bytes + TAG_BYTES


def is_sealed(data: bytes) -> bool:
    """Return whether bytes begin as an encrypted object does."""
    return data[: len(SEALED_MAGIC)] == SEALED_MAGIC


def encode_sealed_header(header: SealedObjectHeader) -> bytes:
    """Return the 64 bytes of a header."""
    return _HEADER.pack(
        SEALED_MAGIC, SEALED_VERSION, 0, header.chunk_bytes, 0, header.key_id, header.salt
    )


def decode_sealed_header(data: bytes) -> SealedObjectHeader:
    """Read a header; raises FormatError saying what is wrong. The chunks prove that it is true."""
    if len(data) < SEALED_HEADER_BYTES:
        raise FormatError(
            f"encrypted object is cut off: {len(data)} of {SEALED_HEADER_BYTES} bytes"
        )
    magic, version, reserved, chunk_bytes, reserved_end, key_id, salt = _HEADER.unpack_from(data)
    if magic != SEALED_MAGIC:
        raise FormatError(f"magic of an encrypted object is {magic!r}, must be {SEALED_MAGIC!r}")
    if version != SEALED_VERSION:
        raise FormatVersionError(
            f"version {version} of encrypted objects is unknown, this build reads {SEALED_VERSION}"
        )
    if reserved or reserved_end or chunk_bytes != CHUNK_BYTES:
        raise FormatError("header of an encrypted object is none that this version writes")
    return SealedObjectHeader(key_id, salt, chunk_bytes)


def nonce_of(chunk: int, *, is_last: bool) -> bytes:
    """Return the 12 bytes that no other chunk of an object has."""
    return _NONCE.pack(chunk, is_last)


def sealed_bytes(clear_bytes: int) -> int:
    """Return the size of an encrypted object with so many bytes of content."""
    chunks = max(1, -(-clear_bytes // CHUNK_BYTES))
    return SEALED_HEADER_BYTES + clear_bytes + chunks * TAG_BYTES
