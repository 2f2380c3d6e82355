"""The on-disk formats of Viewstamp: pure readers and writers.

Everything here only turns values into bytes and bytes into values: no clock, no randomness, no
files. The coordinator, the command line and the Spark application read the same formats through the
same code, and each module's docstring is precise enough to write a second reader from. Shared
conventions:

* integers are unsigned and little-endian;
* checksums are BLAKE3 truncated to its first 16 bytes, digests are the full 32 bytes;
* reserved bytes are written as zero and checked to be zero, so that every flipped bit is found;
* every structure begins with a checksum and has a magic number and a format version at a place
  that no later version will move, so that an old reader can say "too new" rather than "corrupt".
"""

from __future__ import annotations

CHECKSUM_BYTES = 16


class FormatError(ValueError):
    """Bytes that are not valid. The message says what is wrong and where."""


class FormatVersionError(FormatError):
    """Intact bytes of a format version that this build does not know. They are not rot."""
