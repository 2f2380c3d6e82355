"""What a slot held before one of its bytes was damaged.

A checksum of 128 bits fits one slot alone. So if it fits once one byte is changed, that is what the
slot held. There are 32,640 slots to try, which takes about 0.1 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from viewstamp.format import FormatError
from viewstamp.format.ring import RingSlot, decode_slot

_VALUES: Final = 256


def held_before(raw: bytes, *, journal_id: bytes, number: int) -> tuple[RingSlot | None, ...]:
    """Return what a damaged slot held, if only one byte of it is damaged: a slot, or None for one
    that was never written. An empty tuple says that more of it is damaged."""
    for candidate in _with_one_byte_changed(raw):
        try:
            return (decode_slot(candidate, journal_id=journal_id, number=number),)
        except FormatError:
            continue
    return ()


def _with_one_byte_changed(raw: bytes) -> Iterator[bytes]:
    for at, byte in enumerate(raw):
        before, behind = raw[:at], raw[at + 1 :]
        for value in range(_VALUES):
            if value != byte:
                yield before + bytes((value,)) + behind
