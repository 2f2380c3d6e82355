"""The state of the users domain: immutable values in tables that share one undo log."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Final

from services.users.permissions import Permissions, has_stream
from viewstamp import limits
from viewstamp.machine.tables import Table, TableIndex, UndoLog

NEXT_USER_ID: Final = "next_user_id"


@dataclass(frozen=True, slots=True)
class User:
    """A user. Times are microseconds since 1970, log time."""

    id: int
    username: str
    active: bool
    password_hash: str = field(repr=False)
    permissions: Permissions
    created_at: int
    created_revision: int
    modified_revision: int
    # Access tokens and sessions with a lower stamp are refused.
    credential_revision: int
    # Access tokens issued for a personal access token are also refused below this.
    minimum_token_revision: int = 0


@dataclass(frozen=True, slots=True)
class Token:
    """A personal access token; `expires_at` is 0 for never."""

    user_id: int
    name: str
    token_hash: bytes = field(repr=False)
    expires_at: int
    created_at: int
    created_revision: int

    @property
    def modified_revision(self) -> int:
        """The revision of its last change: it is created and deleted, and never changed."""
        return self.created_revision


class UsersState:
    """All users and their tokens, with the indexes that find them.

    Tables may be read directly; only the methods change them, and keep the indexes.
    """

    __slots__ = (
        "users",
        "user_ids",
        "tokens",
        "token_keys",
        "token_names",
        "grantees",
        "counters",
    )

    def __init__(self, undo: UndoLog) -> None:
        self.users: Table[int, User] = Table(undo)
        self.user_ids: Table[str, int] = Table(undo)  # by name
        self.tokens: Table[tuple[int, str], Token] = Table(undo)  # by owner and name
        self.token_keys: Table[bytes, tuple[int, str]] = Table(undo)  # by hash
        self.token_names: Table[int, tuple[str, ...]] = Table(undo)  # by owner, ascending
        # Stream id -> the users with a grant in it, who must change with it.
        self.grantees: TableIndex[int, int] = TableIndex(undo)
        self.counters: Table[str, int] = Table(undo)

    @property
    def next_user_id(self) -> int:
        """The id that the next user gets."""
        return self.counters.rows.get(NEXT_USER_ID, limits.FIRST_USER_ID)

    def set_next_user_id(self, user_id: int) -> None:
        """Let the next user get this id."""
        self.counters.put(NEXT_USER_ID, user_id)

    def user_named(self, username: str) -> User | None:
        """Return the user of that name, or None."""
        user_id = self.user_ids.rows.get(username)
        return None if user_id is None else self.users.rows[user_id]

    def tokens_of(self, user_id: int) -> tuple[str, ...]:
        """Return the names of a user's tokens, ascending."""
        return self.token_names.rows.get(user_id, ())

    def add_user(self, user: User) -> None:
        """Insert a user whose id and name are free."""
        self.users.put(user.id, user)
        self.user_ids.put(user.username, user.id)
        for stream in user.permissions.streams:
            self.grantees.add(stream.stream_id, user.id)

    def replace_user(self, user: User) -> None:
        """Put a user in the place of the one with the same id; a new name must be free."""
        old = self.users.rows[user.id]
        self.users.put(user.id, user)
        if user.username != old.username:
            self.user_ids.delete(old.username)
            self.user_ids.put(user.username, user.id)
        if user.permissions is not old.permissions:
            self._move_grantee(old, user)

    def grantees_of(self, stream_id: int) -> list[int]:
        """Return the users with a grant in a stream, ascending."""
        return self.grantees.of(stream_id)

    def replace_grants(self, user: User, stream_id: int) -> None:
        """Put a user in the place of the one who had more grants in that one stream."""
        self.users.put(user.id, user)
        if not has_stream(user.permissions, stream_id):
            self.grantees.take(stream_id, user.id)

    def remove_user(self, user_id: int) -> None:
        """Delete a user with all tokens."""
        for name in self.tokens_of(user_id):
            self.remove_token((user_id, name))
        user = self.users.delete(user_id)
        self.user_ids.delete(user.username)
        for stream in user.permissions.streams:
            self.grantees.take(stream.stream_id, user_id)

    def add_token(self, token: Token) -> None:
        """Insert a token whose name is free for its owner and whose hash is free."""
        key = (token.user_id, token.name)
        names = list(self.tokens_of(token.user_id))
        insort(names, token.name)
        self.tokens.put(key, token)
        self.token_keys.put(token.token_hash, key)
        self.token_names.put(token.user_id, tuple(names))

    def remove_token(self, key: tuple[int, str]) -> None:
        """Delete a token, by owner and name."""
        user_id, name = key
        token = self.tokens.delete(key)
        self.token_keys.delete(token.token_hash)
        names = tuple(other for other in self.tokens_of(user_id) if other != name)
        if names:
            self.token_names.put(user_id, names)
        else:
            self.token_names.delete(user_id)

    def _move_grantee(self, old: User, new: User) -> None:
        before = {stream.stream_id for stream in old.permissions.streams}
        after = {stream.stream_id for stream in new.permissions.streams}
        for stream_id in sorted(before - after):
            self.grantees.take(stream_id, new.id)
        for stream_id in sorted(after - before):
            self.grantees.add(stream_id, new.id)
