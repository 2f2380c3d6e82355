"""What watchers see of users and their tokens."""

from __future__ import annotations

from operator import itemgetter
from typing import Final

from services.runtime.domain import WatchedKind
from services.runtime.section import id_key
from services.users.model import Token, User, UsersState
from services.users.queries import token_message, user_with_permissions
from services.users.section import token_key
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change

# Memory of a grant with what holds it.
_GRANT_BYTES: Final = 200
# The topics of a StreamPermissions.
_TOPICS: Final = itemgetter(2)


def _describe_user(change: Change, user: User, _: object) -> None:
    change.user_id, change.key = user.id, id_key(user.id)
    change.entity = user_with_permissions(user).SerializeToString(deterministic=True)


def _describe_token(change: Change, token: Token, _: object) -> None:
    change.user_id, change.key = token.user_id, token_key((token.user_id, token.name), token)
    change.entity = token_message(token).SerializeToString(deterministic=True)


def _user_bytes(old: User, new: User | None) -> int:
    if new is not None and new.permissions is old.permissions:
        return 0  # users with many grants log out, too
    streams = old.permissions.streams
    return _GRANT_BYTES * (len(streams) + sum(map(len, map(_TOPICS, streams))))


def _seen(user: User) -> tuple[object, ...]:
    """Everything but secrets and the ends of credentials: a logout shows nothing."""
    return user.username, user.active, user.permissions, user.modified_revision


WATCHED: Final[tuple[WatchedKind[UsersState], ...]] = (
    WatchedKind(
        entity_type=users_pb2.User.DESCRIPTOR.full_name,
        table=lambda state: state.users,
        describe=_describe_user,
        weigh=_user_bytes,
        seen=_seen,
    ),
    WatchedKind(
        entity_type=users_pb2.PersonalAccessToken.DESCRIPTOR.full_name,
        table=lambda state: state.tokens,
        describe=_describe_token,
    ),
)
