"""The users section: pinned bytes, both ways, and refusal of impossible content."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.runtime.section import SectionError
from services.users import section
from services.users.model import Token, User, UsersState
from services.users.permissions import (
    NO_PERMISSIONS,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)
from viewstamp.format.digest import StateDigest
from viewstamp.machine.tables import UndoLog

USER = User(
    id=5,
    username="alice",
    active=True,
    password_hash="$argon2id$v",
    permissions=Permissions(0b101, (StreamPermissions(3, 0b10, (TopicPermissions(9, 0b1001),)),)),
    created_at=1_000,
    created_revision=10,
    modified_revision=12,
    credential_revision=11,
)
IDLE = User(6, "bob", False, "$x", NO_PERMISSIONS, 1_001, 13, 13, 13)
TOKEN = Token(5, "laptop", bytes(range(32)), 9_999, 2_000, 14)

# Bytes that every version must write for these entities, and read.
GOLDEN = [
    "1 0000000000000005 "
    "08051205616c6963651801220b246172676f6e32696424762a180a040801180112100a0208031801"
    "42080a0208091001280130e807380a400c480b",
    "1 0000000000000006 08061203626f6218022202247830e907380d400d480d",
    "2 00000000000000056c6170746f70 "
    "080512066c6170746f701a20000102030405060708090a0b0c0d0e0f101112131415161718191a1b"
    "1c1d1e1f208f4e28d00f300e",
    "3 - 0807",
]
GOLDEN_DIGEST = "b7bef520275f765b70e164e1a6291df77b97c7131faa77f52441e50864bd7265"


def state_of_golden() -> UsersState:
    """Return the state whose section is pinned."""
    state = UsersState(UndoLog())
    state.add_user(IDLE)
    state.add_user(USER)
    state.add_token(TOKEN)
    state.set_next_user_id(7)
    return state


def reloaded(entities: list[tuple[int, bytes, bytes]]) -> UsersState:
    """Return a state of these entities."""
    state = UsersState(UndoLog())
    section.SECTION.load(state, entities)
    return state


def tables(state: UsersState) -> list[object]:
    """Return the rows of every table, indexes too."""
    return [getattr(state, name).rows for name in UsersState.__slots__]


def golden_entities() -> list[tuple[int, bytes, bytes]]:
    """Return the pinned entities."""
    rows = (line.split() for line in GOLDEN)
    return [
        (int(kind), bytes.fromhex(key.removeprefix("-")), bytes.fromhex(canonical))
        for kind, key, canonical in rows
    ]


def test_golden_bytes() -> None:
    """Entities are written as pinned, in ascending order of kind and key."""
    written = list(section.SECTION.entities(state_of_golden()))
    assert [f"{kind} {key.hex() or '-'} {value.hex()}" for kind, key, value in written] == GOLDEN
    assert written == sorted(written)


def test_golden_digest() -> None:
    """The digest of the pinned section is pinned."""
    digest = StateDigest()
    for entity in section.SECTION.entities(state_of_golden()):
        digest.add(*entity)
    assert digest.hexdigest() == GOLDEN_DIGEST


def test_golden_loads() -> None:
    """The pinned bytes give the same tables and indexes."""
    assert tables(reloaded(golden_entities())) == tables(state_of_golden())


def test_empty_state_has_no_entity() -> None:
    """The section of a cluster is empty before its bootstrap."""
    state = UsersState(UndoLog())
    assert list(section.SECTION.entities(state)) == []
    assert tables(reloaded([])) == tables(state)


def test_hashes_are_not_shown() -> None:
    """Printing a user or a token does not print the hash that verifies it."""
    assert "argon2" not in repr(USER)
    assert "\\x01" not in repr(TOKEN)


def user_bytes(**changed: object) -> bytes:
    """Return the bytes of a user with fields replaced."""
    return section.encode_user(replace(USER, **changed))  # type: ignore[arg-type]


KEY = (5).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("kind", "key", "canonical", "message"),
    [
        (4, b"", b"", "kind 4 is unknown"),
        (1, KEY, b"\xff", "not a protobuf message"),
        (1, b"", section.encode_user(USER), "wrong key"),
        (1, (6).to_bytes(8, "big"), section.encode_user(USER), "wrong key"),
        (1, KEY, section.encode_user(USER) + b"\xa0\x06\x01", "not canonical"),
        (1, KEY, section.encode_user(USER)[2:] + section.encode_user(USER)[:2], "not canonical"),
        (2, KEY, section.encode_token(TOKEN), "wrong key"),
        (3, b"x", b"\x08\x07", "wrong key"),
        (3, b"", b"\x08\x87\x00", "not canonical"),
    ],
)
def test_unfit_entities(kind: int, key: bytes, canonical: bytes, message: str) -> None:
    """An entity of an unknown kind, under a wrong key or not canonical is refused."""
    with pytest.raises(SectionError, match=message):
        reloaded([(kind, key, canonical)])


@pytest.mark.parametrize("index", range(4))
def test_same_entity_twice(index: int) -> None:
    """No entity may be in a section twice."""
    entities = golden_entities()
    with pytest.raises(SectionError, match="twice"):
        reloaded([*entities[: index + 1], *entities[index:]])


def test_names_and_hashes_are_unique() -> None:
    """Two users of one name, or two tokens of one hash, are no section."""
    first, second, token, _ = golden_entities()
    with pytest.raises(SectionError, match="twice"):
        reloaded([first, second, (1, (8).to_bytes(8, "big"), user_bytes(id=8))])
    other = section.encode_token(Token(6, "phone", TOKEN.token_hash, 0, 1, 1))
    with pytest.raises(SectionError, match="twice"):
        reloaded([first, second, token, (2, (6).to_bytes(8, "big") + b"phone", other)])


@pytest.mark.parametrize(
    ("left_out", "message"),
    [(0, "tokens of user 5 and not the user"), (3, "no counters")],
)
def test_incomplete_section(left_out: int, message: str) -> None:
    """A section without the owner of a token, or without counters, is refused as a whole."""
    entities = golden_entities()
    del entities[left_out]
    with pytest.raises(SectionError, match=message):
        reloaded(entities)


def test_counter_behind_the_users() -> None:
    """A section whose next id is taken is refused: an id would be used twice."""
    entities = [*golden_entities()[:3], (3, b"", b"\x08\x06")]
    with pytest.raises(SectionError, match="id 6, and user 6 exists"):
        reloaded(entities)
