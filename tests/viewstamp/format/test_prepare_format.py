"""The prepare format: written prepares are read back, and nothing else is accepted."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from testkit.journal_builders import CLUSTER_ID, chain, prepare
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.prepare import (
    HEADER_BYTES,
    NO_PARENT,
    SealedPrepare,
    checksum_of,
    decode_header,
    decode_prepare,
    encode_header,
    encode_prepare,
    invalid,
    seal,
)
from viewstamp.limits import PREPARE_BODY_BYTES_MAX, PREPARE_COMMANDS_MAX

U64_MAX = (1 << 64) - 1
U64 = st.integers(min_value=0, max_value=U64_MAX)
ID = st.binary(min_size=16, max_size=16)

GOLDEN_FIELDS: dict[str, Any] = {
    "parent": bytes(range(16, 32)),
    "cluster_id": CLUSTER_ID,
    "view": 3,
    "op": 2,
    "commit": 1,
    "first_revision": 258,
    "command_count": 5,
    "feature_level": 1,
    "timestamp": 1_700_000_000_000_000,
    "body": b"viewstamp",
}
GOLDEN = bytes.fromhex(
    "ed3511ff1453094882384bc5b1b52166516c501b1dd31e9d3a2b62f6a400abe5"
    "101112131415161718191a1b1c1d1e1f000102030405060708090a0b0c0d0e0f"
    "5653505201000000030000000000000002000000000000000100000000000000"
    "020100000000000000401e18240a060005000000010000000900000000000000"
    "766965777374616d70"
)


def resealed(header: bytes) -> bytes:
    """Return header bytes with a correct checksum."""
    return checksum_of(header[16:128]) + header[16:]


def test_layout_is_pinned() -> None:
    """The encoding of a known prepare never changes, since journals outlive builds."""
    assert encode_prepare(seal(**GOLDEN_FIELDS)) == GOLDEN
    assert decode_prepare(GOLDEN) == seal(**GOLDEN_FIELDS)


def test_layout_is_as_documented() -> None:
    """A second reader, written from the docstring alone, finds every field."""
    assert GOLDEN[0:16] == blake3(GOLDEN[16:128]).digest()[:16]
    assert GOLDEN[16:32] == blake3(b"viewstamp").digest()[:16]
    assert GOLDEN[32:48] == GOLDEN_FIELDS["parent"]
    assert GOLDEN[48:64] == CLUSTER_ID
    assert GOLDEN[64:72] == b"VSPR\x01\x00\x00\x00"
    assert struct.unpack("<5Q", GOLDEN[72:112]) == (3, 2, 1, 258, 1_700_000_000_000_000)
    assert struct.unpack("<4I", GOLDEN[112:128]) == (5, 1, 9, 0)
    assert GOLDEN[128:] == b"viewstamp"


@given(
    parent=ID.filter(any),
    cluster_id=ID,
    view=U64,
    op=st.integers(min_value=2, max_value=U64_MAX),
    first_revision=st.integers(min_value=1, max_value=U64_MAX - PREPARE_COMMANDS_MAX),
    command_count=st.integers(min_value=0, max_value=PREPARE_COMMANDS_MAX),
    feature_level=st.integers(min_value=0, max_value=(1 << 32) - 1),
    timestamp=U64,
    body=st.binary(max_size=300),
    data=st.data(),
)
def test_round_trip(op: int, body: bytes, data: st.DataObject, **fields: Any) -> None:
    """Whatever can be sealed decodes to itself, from bytes and from a memoryview."""
    commit = data.draw(st.integers(min_value=0, max_value=op - 1))
    sealed = seal(op=op, commit=commit, body=body, **fields)

    encoded = encode_prepare(sealed)

    assert decode_prepare(encoded) == sealed
    assert decode_prepare(memoryview(encoded)) == sealed
    assert decode_header(encoded) == sealed.header
    assert encoded == encode_header(sealed.header) + body
    assert invalid(sealed.header) is None


def test_properties_come_from_the_header() -> None:
    """A prepare shows the fields of its header, and counts its last revision."""
    sealed = seal(**GOLDEN_FIELDS)
    header = sealed.header

    shown = (sealed.op, sealed.view, sealed.commit, sealed.checksum, sealed.parent)
    assert shown == (header.op, header.view, header.commit, header.checksum, header.parent)
    assert (sealed.first_revision, sealed.command_count, sealed.last_revision) == (258, 5, 262)
    assert sealed.timestamp == header.timestamp
    assert replace(header, command_count=0).last_revision == 257


@pytest.mark.parametrize("position", range(len(GOLDEN)))
def test_every_flipped_bit_is_detected(position: int) -> None:
    """Decoding notices each flipped bit of a prepare."""
    for bit in range(8):
        damaged = bytearray(GOLDEN)
        damaged[position] ^= 1 << bit
        with pytest.raises(FormatError):
            decode_prepare(bytes(damaged))


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, len(GOLDEN) - 1])
def test_cut_off_bytes_are_refused(size: int) -> None:
    """A prepare that ends early, or has bytes behind it, is refused."""
    with pytest.raises(FormatError):
        decode_prepare(GOLDEN[:size])
    with pytest.raises(FormatError, match="its header says 9"):
        decode_prepare(GOLDEN + b"\0")


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"op": 0, "commit": 0}, "op is 0"),
    ({"commit": 2}, "commit 2 must lie below op 2"),
    ({"first_revision": 0}, "first_revision is 0"),
    ({"command_count": PREPARE_COMMANDS_MAX + 1}, "command_count"),
    ({"first_revision": U64_MAX, "command_count": 2}, "past 64 bits"),
    ({"body": bytes(PREPARE_BODY_BYTES_MAX + 1)}, "size"),
    ({"parent": NO_PARENT}, "parent of op 2"),
    ({"op": 1, "commit": 0}, "parent of op 1"),
    ({"cluster_id": b"short"}, "cluster_id is 5 bytes"),
    ({"view": -1}, "view -1"),
    ({"timestamp": U64_MAX + 1}, "timestamp"),
    ({"feature_level": 1 << 32}, "feature_level"),
]


@pytest.mark.parametrize(("change", "reason"), IMPOSSIBLE)
def test_impossible_prepares_are_not_sealed(change: dict[str, Any], reason: str) -> None:
    """Sealing refuses values that no correct primary makes, and names the field."""
    with pytest.raises(ValueError, match=reason):
        seal(**{**GOLDEN_FIELDS, **change})


IMPOSSIBLE_BYTES: list[tuple[int, bytes, str]] = [
    (80, struct.pack("<Q", 0), "op is 0"),
    (88, struct.pack("<Q", 2), "commit 2"),
    (96, struct.pack("<Q", 0), "first_revision"),
    (112, struct.pack("<I", PREPARE_COMMANDS_MAX + 1), "command_count"),
    (120, struct.pack("<I", PREPARE_BODY_BYTES_MAX + 1), "size"),
    (32, NO_PARENT, "parent"),
    (70, b"\x01\x00", "reserved"),
    (124, b"\x00\x00\x00\x01", "reserved"),
    (64, b"VSPX", "magic"),
]


@pytest.mark.parametrize(("offset", "value", "reason"), IMPOSSIBLE_BYTES)
def test_impossible_headers_are_not_decoded(offset: int, value: bytes, reason: str) -> None:
    """A header with a correct checksum is still refused if its content is impossible."""
    changed = GOLDEN[:offset] + value + GOLDEN[offset + len(value) :]
    with pytest.raises(FormatError, match=reason):
        decode_prepare(resealed(changed))


def test_a_newer_version_is_not_called_corrupt() -> None:
    """An intact prepare of a later format says so, and does not look like damage."""
    newer = resealed(GOLDEN[:68] + b"\x03\x00" + GOLDEN[70:])
    with pytest.raises(FormatVersionError, match="version 3 is unknown"):
        decode_prepare(newer)


def test_the_last_entry_of_an_epoch_has_a_version_of_its_own() -> None:
    """Its mark survives and is part of its identity, and a build without epochs refuses it."""
    last = seal(**GOLDEN_FIELDS, ends_epoch=True)

    assert decode_prepare(encode_prepare(last)) == last
    assert last.header.ends_epoch
    assert encode_prepare(last)[68:70] == b"\x02\x00"
    assert last.checksum != seal(**GOLDEN_FIELDS).checksum


def test_the_checksum_chains() -> None:
    """Two logs that differ in one body differ in every identity after it."""
    one, other = chain(4), chain(4, bodies={2: b"another"})

    assert one[0].checksum == other[0].checksum
    assert all(a.checksum != b.checksum for a, b in zip(one[1:], other[1:], strict=True))


@given(st.binary(max_size=400))
def test_random_bytes_raise_format_errors_only(junk: bytes) -> None:
    """Decoding junk raises FormatError, whatever the junk."""
    for buffer in (junk, GOLDEN[:64] + junk, resealed((GOLDEN[:72] + junk).ljust(128, b"\0"))):
        try:
            decoded = decode_prepare(buffer)
        except FormatError:
            continue
        assert isinstance(decoded, SealedPrepare)
        assert encode_prepare(decoded) == buffer


def test_first_op_has_no_parent() -> None:
    """The first op is the only one whose parent is zero."""
    assert prepare(1, NO_PARENT).parent == bytes(16)
