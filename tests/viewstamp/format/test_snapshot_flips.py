"""Rot: every flipped bit and every lost byte of a snapshot's files is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.viewstamp.format.snapshot_builders import (
    USERS,
    chains,
    layer_of,
    snapshot_files,
    user,
)
from viewstamp.format import FormatError
from viewstamp.format.layer import check_layer, reader_of
from viewstamp.format.manifest import decode_manifest
from viewstamp.format.section import SectionEntry

(MANIFEST,) = (data for name, data in snapshot_files().items() if name.startswith("manifests/"))
# A delta with a tombstone, of two blocks, in few bytes.
DELTA = layer_of(
    [user(1, "one"), SectionEntry(1, user(2, "two").key, bytes(262_100)), chains()[USERS][1][1][1]],
    generation=3,
    base=2,
)
FILES: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "delta": (DELTA, check_layer),
    "empty base": (layer_of([]), check_layer),
    "manifest": (MANIFEST, decode_manifest),
}


def test_the_delta_has_all_there_is() -> None:
    """The file that bits are flipped in has several blocks and a tombstone."""
    reader = reader_of(DELTA)
    assert (len(reader.blocks), reader.tombstone_count) == (2, 1)


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_noticed(name: str) -> None:
    """Whichever bit of a file flips, reading it is refused with a FormatError."""
    data, check = FILES[name]
    check(data)
    unnoticed = [
        place for place in range(8 * len(data)) if not is_refused(flipped(data, place), check)
    ]
    assert unnoticed == []


@pytest.mark.parametrize("name", FILES)
def test_every_lost_or_added_byte_is_noticed(name: str) -> None:
    """A file cut off anywhere, at either end, or with something behind it is refused."""
    data, check = FILES[name]
    damaged = [data[:size] for size in range(len(data))]
    damaged += [data[size:] for size in range(1, len(data))]
    damaged += [data + b"\0", data + data, b"\0" + data]
    assert [len(other) for other in damaged if not is_refused(other, check)] == []


def flipped(data: bytes, place: int) -> bytes:
    """The bytes with one bit flipped."""
    index, bit = divmod(place, 8)
    return data[:index] + bytes((data[index] ^ 1 << bit,)) + data[index + 1 :]


def is_refused(data: bytes, check: Callable[[bytes], object]) -> bool:
    """Whether a check refuses the bytes; errors other than FormatError escape."""
    try:
        check(data)
    except FormatError:
        return True
    return False
