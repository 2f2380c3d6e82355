"""What a shipper does unless it is told otherwise; light to import, since options show it."""

from __future__ import annotations

from typing import Final

from viewstamp.limits import MIB

# Entries of so many bytes are one piece. One entry may come on top.
PIECE_BYTES: Final = 8 * MIB
PIECE_BYTES_MIN: Final = 4_096
PIECE_BYTES_MAX: Final = 32 * MIB
# Entries are shipped after this time, however few.
PIECE_AGE_MS: Final = 10_000
# Log that the replica has dropped is kept so long as it is no more than this.
SPOOL_BYTES_MAX: Final = 1_024 * MIB
