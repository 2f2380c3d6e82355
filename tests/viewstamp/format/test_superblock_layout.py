"""The bytes of a superblock, which later builds must still read."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from blake3 import blake3

from testkit.journal_builders import CLUSTER_ID
from tests.coordinator.journal.superblock_states import ADMITTED, FIRST, NEWCOMER, STATES, history
from viewstamp.format import FormatError
from viewstamp.format.epoch_members import EpochMembers
from viewstamp.format.prepare import checksum_of
from viewstamp.format.superblock import (
    COPY_BYTES,
    NO_PARENT,
    decode_copy,
    encode_copy,
    newest_agreed,
    seal_state,
)

GOLDEN = bytes.fromhex(
    "7fab8468b12fbc790aaf51955a397c0e02000000000000000000000000000000"
    "565353420100000002000000000000007356694ac180bc902657d5aeadf09c6c"
    "000102030405060708090a0b0c0d0e0f01000000030000000300000000000000"
    "010000000000000009000000000000000200000000000000"
)
GOLDEN_VERSION_2 = bytes.fromhex(
    "26a2480052ba9aa649399d09610f5d1b01000000000000000000000000000000"
    "565353420200000002000000000000003be859814c2502939ab4b28ca286ca42"
    "000102030405060708090a0b0c0d0e0f01000000030000000300000000000000"
    "0300000000000000090000000000000000000000000000000500000000000000"
)


def test_layout_is_pinned() -> None:
    """The bytes of a known copy never change, and match the docstring."""
    first, second = history([FIRST, STATES[3]])
    sector = encode_copy(second, 2)

    assert sector[:120] == GOLDEN
    assert sector[:16] == blake3(sector[32:]).digest()[:16]
    assert struct.unpack("<QQ", sector[16:32]) == (2, 0)
    assert sector[32:40] == b"VSSB\x01\0\0\0"
    assert struct.unpack("<Q", sector[40:48]) == (2,)
    assert sector[48:80] == first.checksum + CLUSTER_ID
    assert struct.unpack("<IIQQQQ", sector[80:120]) == (1, 3, 3, 1, 9, 2)
    assert sector[120:] == bytes(COPY_BYTES - 120)
    assert decode_copy(sector, 2) == second


def test_layout_of_a_newcomer_is_pinned() -> None:
    """A voting view makes a superblock of version 2, whose bytes never change either."""
    sealed = seal_state(ADMITTED, 2, history([NEWCOMER])[0].checksum)
    sector = encode_copy(sealed, 1)

    assert sector[:128] == GOLDEN_VERSION_2
    assert sector[32:40] == b"VSSB\x02\0\0\0"
    assert struct.unpack("<Q", sector[120:128]) == (5,)
    assert sector[128:] == bytes(COPY_BYTES - 128)
    assert decode_copy(sector, 1) == sealed


def test_layout_with_a_named_record_is_pinned() -> None:
    """A record of the journal makes a superblock of version 3."""
    state = replace(FIRST, journal_sequence=0x0706, damaged_start=1)
    sealed = seal_state(state, 1, NO_PARENT)
    sector = encode_copy(sealed, 3)

    assert sector[32:40] == b"VSSB\x03\0\0\0"
    assert sector[40:128] == encode_copy(seal_state(FIRST, 1, NO_PARENT), 3)[40:128]
    assert struct.unpack("<QQ", sector[128:144]) == (0x0706, 1)
    assert sector[144:] == bytes(COPY_BYTES - 144)
    assert decode_copy(sector, 3) == sealed


def test_layout_in_a_later_epoch_is_pinned() -> None:
    """Members make a superblock of version 4, and lie behind the fields of version 3."""
    members = EpochMembers(1 << 48, (1, 2), (5,), ((2, b"d" * 16),), 12, b"c" * 16)
    state = replace(FIRST, view=1 << 48, members=members)
    sealed = seal_state(state, 1, NO_PARENT)
    sector = encode_copy(sealed, 0)

    assert sector[32:40] == b"VSSB\x04\0\0\0"
    assert struct.unpack("<QQBBB5x", sector[144:168]) == (1 << 48, 12, 2, 1, 1)
    assert struct.unpack("<7I", sector[168:196]) == (1, 2, 0, 0, 0, 0, 0)
    assert struct.unpack("<6I", sector[196:220]) == (5, 0, 0, 0, 0, 0)
    assert sector[220:240] == b"\x02\0\0\0" + b"d" * 16
    assert sector[240:376] == bytes(120) + b"c" * 16
    assert sector[376:] == bytes(COPY_BYTES - 376)
    assert decode_copy(sector, 0) == sealed


@pytest.mark.parametrize(
    ("version", "voting_view", "journal_sequence"),
    [(1, 5, 0), (2, 0, 0), (3, 0, 0), (3, 5, 0), (1, 0, 7), (2, 5, 7)],
)
def test_the_version_and_the_fields_agree(
    version: int, voting_view: int, journal_sequence: int
) -> None:
    """The newest field that is in use tells the version; else it is damage."""
    checked = encode_copy(history([ADMITTED])[0], 0)[32:]
    fields = struct.pack("<H", version), struct.pack("<QQ", voting_view, journal_sequence)
    checked = checked[:4] + fields[0] + checked[6:88] + fields[1] + checked[104:]
    with pytest.raises(FormatError, match=f"voting_view {voting_view}, .* version {version}"):
        decode_copy(checksum_of(checked) + struct.pack("<QQ", 0, 0) + checked, 0)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((1, 1, 1, 1), 1),
        ((2, 2, 1, 1), 2),
        ((1, 1, 2, 2), 2),
        ((2, 1, 1, 1), 1),
        ((2, None, 1, 1), 1),
        ((None, 1, None, 1), 1),
        ((1, 2, None, None), None),
        ((None, None, None, None), None),
    ],
)
def test_the_newest_state_with_two_copies_is_agreed_on(
    numbers: tuple[int | None, ...], expected: int | None
) -> None:
    """Two equal copies put a state in force, and the newest such state counts; one never does."""
    states = dict(enumerate(history([FIRST, STATES[3]]), 1))
    copies = [None if number is None else states[number] for number in numbers]
    assert newest_agreed(copies) == (None if expected is None else states[expected])
