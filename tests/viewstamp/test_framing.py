"""Frames are exactly what protobuf itself writes for `repeated bytes items = 1`."""

from __future__ import annotations

import contextlib

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from hypothesis import given
from hypothesis import strategies as st

from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.framing import (
    EMPTY_FRAME,
    FramingError,
    decode_varint,
    encode_varint,
    frame,
    frame_all,
    unframe,
)

# The places where a varint grows by a byte, and where the lookup table ends.
EDGES = sorted({(1 << bits) + delta for bits in (7, 14, 21, 28, 63) for delta in (-1, 0, 1)})


def varint_of_protobuf(value: int) -> bytes:
    """Return the varint that the protobuf library writes."""
    tag_and_varint: bytes = submit_pb2.CommandRequest(number=value).SerializeToString()
    return tag_and_varint[1:] or b"\x00"


@pytest.mark.parametrize("value", [0, 1, *EDGES, (1 << 64) - 1])
def test_varints_at_the_edges(value: int) -> None:
    """Varints of every length are those of the protobuf library, and come back."""
    encoded = encode_varint(value)

    assert encoded == varint_of_protobuf(value)
    assert decode_varint(encoded, 0) == (value, len(encoded))


@given(st.integers(0, (1 << 64) - 1))
def test_varints(value: int) -> None:
    """Any 64-bit number is written as the protobuf library writes it."""
    assert encode_varint(value) == varint_of_protobuf(value)


@given(st.lists(st.binary(max_size=300)))
def test_round_trip(items: list[bytes]) -> None:
    """Items that were framed and joined come apart as they were, and joining is concatenation."""
    blob = frame_all(items)

    assert unframe(blob) == items
    assert blob + frame(b"x") == frame_all([*items, b"x"])


def test_empty_frame() -> None:
    """The hole left by a refused command is the frame of no bytes."""
    assert frame(b"") == EMPTY_FRAME


@pytest.mark.parametrize(
    ("blob", "why"),
    [
        (b"\x0b\x00", "expected frame tag 0x0A at byte 0, got 0x0b"),
        (b"\x0a", "varint at byte 1 is cut off"),
        (b"\x0a\x05ab", "wants 5 bytes, 2 left"),
        (b"\x0a" + b"\xff" * 10, "longer than 10 bytes"),
        (EMPTY_FRAME + b"\x12\x00", "expected frame tag 0x0A at byte 2"),
    ],
)
def test_damage_is_named(blob: bytes, why: str) -> None:
    """Bytes that are not whole frames are refused with the place and the reason."""
    with pytest.raises(FramingError, match=why):
        unframe(blob)


@given(st.lists(st.binary(max_size=9), min_size=1), st.data())
def test_cut_off_frames(items: list[bytes], data: st.DataObject) -> None:
    """Frames that end anywhere give the whole ones before, or a FramingError if one is cut off."""
    blob = frame_all(items)
    end = data.draw(st.integers(0, len(blob)))
    whole = [count for count in range(len(items) + 1) if len(frame_all(items[:count])) == end]
    if whole:
        assert unframe(blob[:end]) == items[: whole[0]]
    else:
        with pytest.raises(FramingError, match=r"cut off|left"):
            unframe(blob[:end])


# Whole frames, and what is none, in any order.
PIECES = st.lists(st.sampled_from([b"\n\x00", b"\n\x01a", b"\n\x02bc", b"\n", b"\x01", b"d"]))


@given(st.binary(max_size=64) | PIECES.map(b"".join))
def test_any_bytes(blob: bytes) -> None:
    """Any bytes give the frames that protobuf finds in them, or a FramingError."""
    with contextlib.suppress(FramingError, UnicodeDecodeError):
        items = [item.decode() for item in unframe(blob)]
        assert items == FieldMask.FromString(blob).paths
