"""State digests are independent of order, reversible, unambiguous, and pinned."""

from __future__ import annotations

import struct

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from viewstamp.format.digest import DIGEST_MODULUS, StateDigest, entity_digest

ENTITY = st.tuples(
    st.integers(min_value=0, max_value=(1 << 32) - 1), st.binary(max_size=8), st.binary(max_size=8)
)
GOLDEN_ONE = "f95eed8d422cc545103a4465e2bb817ccd8c7222ac9a135b9ec9715c865c45b2"
GOLDEN_SUM = "2ab7a14b87df6b428435a86086cd51e8b864bd062ed97387bb66dcc4e21e1564"


def digest_of(entities: list[tuple[int, bytes, bytes]]) -> StateDigest:
    """The digest of entities added in this order."""
    digest = StateDigest()
    for entity in entities:
        digest.add(*entity)
    return digest


def test_values_are_pinned() -> None:
    """Digests of known entities never change, since they are compared across builds."""
    one = digest_of([(1, b"key", b"canonical")])
    both = digest_of([(1, b"key", b"canonical"), (2, b"", b"")])

    assert StateDigest().hexdigest() == "0" * 64
    assert one.hexdigest() == GOLDEN_ONE
    assert both.hexdigest() == GOLDEN_SUM


def test_framing_is_as_documented() -> None:
    """A second reader, written from the docstring alone, computes the same digest."""
    framed = struct.pack("<IQQ", 1, 3, 9) + b"key" + b"canonical"

    assert blake3(framed).hexdigest() == GOLDEN_ONE
    assert entity_digest(1, b"key", b"canonical") == int(GOLDEN_ONE, 16)


@given(st.lists(ENTITY, max_size=6))
def test_order_does_not_matter(entities: list[tuple[int, bytes, bytes]]) -> None:
    """Any order of adding gives the same digest."""
    assert digest_of(entities) == digest_of(sorted(entities)) == digest_of(entities[::-1])


@given(st.lists(ENTITY, max_size=5), ENTITY)
def test_remove_takes_back_add(
    entities: list[tuple[int, bytes, bytes]], extra: tuple[int, bytes, bytes]
) -> None:
    """Adding and removing an entity leaves the digest as it was, even below zero in between."""
    digest = digest_of(entities)
    before = digest.value
    digest.remove(*extra)
    assert 0 <= digest.value < DIGEST_MODULUS
    assert digest.value != before
    digest.add(*extra)
    assert digest.value == before


@given(ENTITY, ENTITY)
def test_framing_is_unambiguous(
    one: tuple[int, bytes, bytes], two: tuple[int, bytes, bytes]
) -> None:
    """Different entities have different digests, even where their bytes join to the same."""
    assert (entity_digest(*one) == entity_digest(*two)) == (one == two)
    kind, key, canonical = one
    assert entity_digest(kind, key + b"x", canonical) != entity_digest(kind, key, b"x" + canonical)


@given(st.lists(ENTITY, max_size=3))
def test_bytes_round_trip(entities: list[tuple[int, bytes, bytes]]) -> None:
    """A digest read back from its bytes goes on from the same value."""
    digest = digest_of(entities)
    again = StateDigest.from_bytes(digest.to_bytes())
    assert again == digest
    assert again.to_bytes().hex() == digest.hexdigest()
    assert repr(again) == f"StateDigest({digest.hexdigest()})"
    assert again != digest.value


def test_impossible_values_are_refused() -> None:
    """Kinds beyond 32 bits, digests beyond 256 bits and short bytes are programming errors."""
    with pytest.raises(ValueError, match="kind -1"):
        entity_digest(-1, b"", b"")
    with pytest.raises(ValueError, match="kind"):
        StateDigest().add(1 << 32, b"", b"")
    with pytest.raises(ValueError, match="state digest"):
        StateDigest(DIGEST_MODULUS)
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        StateDigest.from_bytes(bytes(31))
    with pytest.raises(TypeError):
        hash(StateDigest())
