"""The section of the users domain: entities to canonical bytes and back.

The bytes are protobuf in ascending field order without unknown or default fields; tests pin them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from google.protobuf.message import Message

from services.runtime.section import (
    EntityKind,
    Projected,
    Section,
    SectionError,
    id_key,
)
from services.users import permissions
from services.users.model import NEXT_USER_ID, Token, User, UsersState
from services.users.queries import status_of
from viewstamp import limits
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.machine.freezing import WHOLE_TABLE_KEY

SECTION_VERSION: Final = 1

KIND_USER: Final = 1
KIND_TOKEN: Final = 2
KIND_COUNTERS: Final = 3


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
        minimum_token_revision=user.minimum_token_revision,
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


def encode_counters(counters: Mapping[str, int]) -> bytes:
    """Return the canonical bytes of the counters."""
    return _encode(users_pb2.UsersCountersEntity(next_user_id=counters[NEXT_USER_ID]))


def encode_access(user: User) -> bytes:
    """Return what streams must know of a user, in the bytes of its own entity."""
    return _encode(
        streams_pb2.AccessEntity(
            user_id=user.id,
            minimum_credential_revision=user.credential_revision,
            permissions=_encode(permissions.to_message(user.permissions)),
            active=user.active,
            minimum_token_revision=user.minimum_token_revision,
        )
    )


def _load_user(state: UsersState, canonical: bytes) -> Projected:
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
        minimum_token_revision=entity.minimum_token_revision,
    )
    state.add_user(user)
    return id_key(user.id), encode_user(user)


def _load_token(state: UsersState, canonical: bytes) -> Projected:
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
    return token_key(key, token), encode_token(token)


def _load_counters(state: UsersState, canonical: bytes) -> Projected:
    entity = users_pb2.UsersCountersEntity.FromString(canonical)
    state.set_next_user_id(entity.next_user_id)
    return WHOLE_TABLE_KEY, encode_counters(state.counters.rows)


def _check_whole(state: UsersState) -> Iterable[None]:
    """Raise SectionError unless the entities loaded make a whole section."""
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
    return ()


def _access_of_all(state: UsersState) -> Iterator[Projected]:
    """Yield what streams must know of every user, ascending."""
    for user_id in state.users.sorted_keys():
        yield id_key(user_id), encode_access(state.users.rows[user_id])


def _encode(entity: Message) -> bytes:
    return entity.SerializeToString(deterministic=True)


def token_key(key: tuple[int, str], token: Token) -> bytes:
    """Return the key of a token's entity, from owner and name."""
    user_id, name = key
    return id_key(user_id) + name.encode("utf-8")


SECTION: Final[Section[UsersState]] = Section(
    version=SECTION_VERSION,
    kinds=(
        EntityKind(
            KIND_USER,
            table=lambda state: state.users,
            encode=encode_user,
            load=_load_user,
            encode_key=lambda user_id, user: id_key(user_id),
        ),
        EntityKind(
            KIND_TOKEN,
            table=lambda state: state.tokens,
            encode=encode_token,
            load=_load_token,
            encode_key=token_key,
        ),
        EntityKind(
            KIND_COUNTERS,
            table=lambda state: state.counters,
            encode=encode_counters,
            load=_load_counters,
            whole_table=True,
        ),
    ),
    check=_check_whole,
    projections={"access": _access_of_all},
)
