"""Decompression that is bounded: a small file cannot become an endless one."""

from __future__ import annotations

import errno
import io
from typing import TYPE_CHECKING, BinaryIO, Final

from analytics.otlp.forms import GZIP, MESSAGE_BYTES_MAX, ZSTD
from viewstamp.limits import MIB

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAGIC: Final = {GZIP: "gz", ZSTD: "zst"}
CODECS: Final = {"gz": "gzip", "zst": "zstd"}
# Traces become ten to forty times smaller. A file that becomes larger than this many times its
# size, and than the bytes below, is made to fill memory or time.
INFLATION_MAX: Final = 1000
INFLATED_BYTES_MIN: Final = 256 * MIB


class BombError(OSError):
    """Compressed bytes become too many. The message says how many are accepted."""


class _Bounded(io.RawIOBase):
    """A stream that ends with BombError after so many bytes."""

    def __init__(self, inner: BinaryIO, bytes_max: int) -> None:
        self._inner = inner
        self._left = bytes_max
        self._bytes_max = bytes_max

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into the buffer. Raises BombError, and OSError if the bytes are damaged."""
        view = memoryview(buffer).cast("B")
        data = self._inner.read(len(view))
        self._left -= len(data)
        if self._left < 0:
            raise BombError(
                errno.EFBIG,
                f"it becomes more than {self._bytes_max:,} bytes when it is decompressed, and no"
                " more are read: compress less at once, or decompress it yourself",
            )
        view[: len(data)] = data
        return len(data)


def compression_of(head: bytes) -> str | None:
    """Return how bytes that begin like this are compressed, one of CODECS; None if they are not."""
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)


def decompressed(raw: BinaryIO, compression: str, size_bytes: int) -> BinaryIO:
    """Return the decompressed stream of a file of this size. Reading raises OSError if damaged.

    It tells a truncated file from a complete one, and raises BombError past the bounds.
    """
    bytes_max = max(INFLATED_BYTES_MIN, INFLATION_MAX * size_bytes)
    return _stream(raw, compression, bytes_max)


def inflated(data: bytes) -> bytes:
    """Return a message decompressed, if it is compressed. Raises OSError, BombError."""
    compression = compression_of(data)
    if compression is None:
        return data
    return _stream(io.BytesIO(data), compression, MESSAGE_BYTES_MAX).read()


def _stream(raw: BinaryIO, compression: str, bytes_max: int) -> BinaryIO:
    import pyarrow

    inner = pyarrow.CompressedInputStream(raw, CODECS[compression])
    return io.BufferedReader(_Bounded(inner, bytes_max))
