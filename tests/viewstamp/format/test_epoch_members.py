"""The members of an epoch as bytes: what is written is read, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewstamp.format import FormatError
from viewstamp.format.epoch_members import (
    EPOCH_MEMBERS_BYTES,
    STANDBYS_MAX,
    VOTERS_MAX,
    EpochMembers,
    decode_members,
    encode_members,
    invalid_members,
)

MEMBERS = EpochMembers(3 << 48, (1, 4, 2), (5,), ((4, bytes(range(16))),), 12)


@st.composite
def epochs(draw: st.DrawFn) -> EpochMembers:
    """Members of some epoch after the first."""
    ids = draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=13, unique=True))
    count = draw(st.integers(max(1, len(ids) - STANDBYS_MAX), min(len(ids), VOTERS_MAX)))
    voters, standbys = tuple(ids[:count]), tuple(ids[count:])
    named = draw(st.lists(st.sampled_from(voters), unique=True))
    disks = tuple((each, draw(st.binary(min_size=16, max_size=16))) for each in named)
    first_view = draw(st.integers(1 << 48, 2**64 - 1))
    checksum = draw(st.binary(min_size=16, max_size=16))
    began_op = draw(st.integers(0, 2**64 - 1))
    return EpochMembers(first_view, voters, standbys, disks, began_op, checksum)


@given(epochs())
def test_members_survive_their_bytes(members: EpochMembers) -> None:
    """All that a membership says is read back, from a region of a fixed size."""
    encoded = encode_members(members)

    assert len(encoded) == EPOCH_MEMBERS_BYTES
    assert decode_members(encoded + b"what follows") == members


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"first_view": 5}, "first view 5 is of the epoch that began with the cluster"),
    ({"voters": ()}, "0 voters"),
    ({"voters": tuple(range(8)), "standbys": (), "disks": ()}, "8 voters are outside 1..7"),
    ({"standbys": tuple(range(10, 17))}, "7 standbys are more than 6"),
    ({"standbys": (4,)}, "given twice"),
    ({"voters": (1, 4, 2**32)}, "does not fit into 32 bits"),
    ({"disks": ((9, bytes(16)),)}, "are not one for each"),
    ({"disks": ((4, bytes(16)), (4, bytes(16)))}, "are not one for each"),
    ({"disks": ((4, b"short"),)}, "is not 16 bytes"),
    ({"began_checksum": b"short"}, "checksum of entry 12 is not 16 bytes"),
]


@pytest.mark.parametrize(("change", "reason"), IMPOSSIBLE)
def test_impossible_members_are_named(change: dict[str, Any], reason: str) -> None:
    """What no epoch can have is told in words, before it is written."""
    assert reason in str(invalid_members(replace(MEMBERS, **change)))
    assert invalid_members(MEMBERS) is None


def members_in(buffer: bytes) -> EpochMembers | None:
    """The members that these bytes hold, or None if they are refused."""
    try:
        return decode_members(buffer)
    except FormatError:
        return None


@given(st.integers(0, EPOCH_MEMBERS_BYTES - 1), st.integers(1, 255))
def test_other_bytes_are_other_members_or_refused(place: int, flip: int) -> None:
    """No two byte strings mean the same: whatever is accepted has exactly these bytes."""
    changed = bytearray(encode_members(MEMBERS))
    changed[place] ^= flip

    found = members_in(bytes(changed))

    assert found is None or encode_members(found) == changed
    assert found != MEMBERS
