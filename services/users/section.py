"""The section of the users domain: entities to canonical bytes and back.

The bytes are protobuf in ascending field order without unknown or default fields; tests pin them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from google.protobuf.message import DecodeError, Message

from services.runtime.domain import Entity
from services.users import permissions
from services.users.model import State, Token, User
from services.users.queries import status_of
from viewstamp import limits
from viewstamp.api.users.v1 import users_pb2

SECTION_VERSION: Final = 1

KIND_USER: Final = 1
KIND_TOKEN: Final = 2
KIND_COUNTERS: Final = 3

_ID_BYTES: Final = 8


class SectionError(ValueError):
    """An entity that this section cannot hold; the message says which and why."""


def entities(state: State) -> Iterator[Entity]:
    """Yield kind, key and canonical bytes of every entity, in ascending (kind, key) order."""
    for user_id in state.users.sorted_keys():
        yield KIND_USER, _id_key(user_id), encode_user(state.users.rows[user_id])
    for key in state.tokens.sorted_keys():
        yield KIND_TOKEN, _token_key(key), encode_token(state.tokens.rows[key])
    if len(state.counters):  # a cluster that was not founded yet has no entity at all
        counters = users_pb2.UsersCountersEntity(next_user_id=state.next_user_id)
        yield KIND_COUNTERS, b"", _encode(counters)


def load(state: State, kind: int, key: bytes, canonical: bytes) -> None:
    """Insert one entity as `entities` yielded it, in any order of entities.

    Raises SectionError if the bytes are not canonical, do not belong to the key, or clash with
    what is there; then the state must be dropped. After the last one, call `check_loaded`.
    """
    loader = _LOADERS.get(kind)
    if loader is None:
        known = ", ".join(map(str, _LOADERS))
        raise SectionError(f"entity kind {kind} is unknown to the users section; it has {known}")
    try:
        expected = loader(state, canonical)
    except DecodeError as error:
        raise SectionError(f"entity {_where(kind, key)} is not a protobuf message") from error
    if expected != (key, canonical):
        raise SectionError(f"entity {_where(kind, key)} is not canonical, or under a wrong key")


def check_loaded(state: State) -> None:
    """Raise SectionError unless the entities loaded so far make a whole section."""
    for user_id in state.token_names.sorted_keys():
        if user_id not in state.users:
            raise SectionError(f"the section has tokens of user {user_id} and not the user")
    if len(state.users) and not len(state.counters):
        raise SectionError("the section has users and no counters")
    highest = max(state.users.rows, default=limits.ROOT_USER_ID)
    if state.next_user_id <= highest:
        raise SectionError(
            f"the next user would get id {state.next_user_id}, and user {highest} exists"
        )


def encode_user(user: User) -> bytes:
    """Return the canonical bytes of a user."""
    entity = users_pb2.UserEntity(
        id=user.id,
        username=user.username,
        status=status_of(user),
        password_hash=user.password_hash,
        created_at=user.created_at,
        created_revision=user.created_revision,
        modified_revision=user.modified_revision,
        credential_revision=user.credential_revision,
    )
    if user.permissions != permissions.NO_PERMISSIONS:
        entity.permissions.CopyFrom(permissions.to_message(user.permissions))
    return _encode(entity)


def encode_token(token: Token) -> bytes:
    """Return the canonical bytes of a token."""
    return _encode(
        users_pb2.PersonalAccessTokenEntity(
            user_id=token.user_id,
            name=token.name,
            token_hash=token.token_hash,
            expires_at=token.expires_at,
            created_at=token.created_at,
            created_revision=token.created_revision,
        )
    )


def _load_user(state: State, canonical: bytes) -> tuple[bytes, bytes]:
    entity = users_pb2.UserEntity.FromString(canonical)
    if entity.id in state.users or entity.username in state.user_ids:
        raise SectionError(f"user {entity.id} is in the section twice, or its name is")
    user = User(
        id=entity.id,
        username=entity.username,
        active=entity.status == users_pb2.USER_STATUS_ACTIVE,
        password_hash=entity.password_hash,
        permissions=permissions.from_message(entity.permissions),
        created_at=entity.created_at,
        created_revision=entity.created_revision,
        modified_revision=entity.modified_revision,
        credential_revision=entity.credential_revision,
    )
    state.add_user(user)
    return _id_key(user.id), encode_user(user)


def _load_token(state: State, canonical: bytes) -> tuple[bytes, bytes]:
    entity = users_pb2.PersonalAccessTokenEntity.FromString(canonical)
    key = (entity.user_id, entity.name)
    if key in state.tokens or entity.token_hash in state.token_keys:
        raise SectionError(
            f"a token of user {entity.user_id} is in the section twice, or its hash is"
        )
    token = Token(
        user_id=entity.user_id,
        name=entity.name,
        token_hash=entity.token_hash,
        expires_at=entity.expires_at,
        created_at=entity.created_at,
        created_revision=entity.created_revision,
    )
    state.add_token(token)
    return _token_key(key), encode_token(token)


def _load_counters(state: State, canonical: bytes) -> tuple[bytes, bytes]:
    entity = users_pb2.UsersCountersEntity.FromString(canonical)
    if len(state.counters):
        raise SectionError("the counters are in the section twice")
    state.set_next_user_id(entity.next_user_id)
    return b"", _encode(users_pb2.UsersCountersEntity(next_user_id=entity.next_user_id))


# Each inserts one entity and returns the key and the bytes that it should have had.
_LOADERS: Final[Mapping[int, Callable[[State, bytes], tuple[bytes, bytes]]]] = {
    KIND_USER: _load_user,
    KIND_TOKEN: _load_token,
    KIND_COUNTERS: _load_counters,
}


def _encode(entity: Message) -> bytes:
    return entity.SerializeToString(deterministic=True)


def _id_key(user_id: int) -> bytes:
    return user_id.to_bytes(_ID_BYTES, "big")


def _token_key(key: tuple[int, str]) -> bytes:
    user_id, name = key
    return _id_key(user_id) + name.encode("utf-8")


def _where(kind: int, key: bytes) -> str:
    return f"of kind {kind} under key {key.hex() or 'empty'}"
