"""Who has logged in to the console of this replica: in memory alone, and gone with the process.

A session has the access token of its user, which never leaves the process. It ends with that token,
at logout, when the cluster refuses the token, or when its user has begun too many others.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.console.bounds import SESSION_SECRET_BYTES, SESSIONS_MAX, SESSIONS_PER_USER_MAX


class SessionsFull(Exception):  # noqa: N818 - reads as the sentence it is
    """No user can log in until a session ends."""


@dataclass(slots=True, eq=False)
class ConsoleSession:
    """A user who has logged in; `expires_at_us` is in microseconds since 1970."""

    user_id: int
    username: str
    access_token: str = field(repr=False)
    expires_at_us: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0


class ConsoleSessions:
    """All sessions by the digest of their secret, the oldest first."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._sessions: dict[bytes, ConsoleSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, session: ConsoleSession) -> str:
        """Return the new secret that stands for a session. Raises SessionsFull.

        The oldest session of a user with too many ends.
        """
        self._end_expired()
        own = [each for each in self._sessions.values() if each.user_id == session.user_id]
        if len(own) >= SESSIONS_PER_USER_MAX:
            self.end(own[0])
        if len(self._sessions) >= SESSIONS_MAX:
            raise SessionsFull
        secret = secrets.token_urlsafe(SESSION_SECRET_BYTES)
        self._sessions[_digest(secret)] = session
        return secret

    def find(self, secret: str) -> ConsoleSession | None:
        """Return the session of a secret, if it lasts."""
        session = self._sessions.get(_digest(secret))
        if session is not None and self.seconds_left(session) <= 0:
            self.end(session)
            return None
        return session

    def seconds_left(self, session: ConsoleSession) -> float:
        """Return for how long a session lasts, in seconds; 0 if it is over."""
        return max(0, session.expires_at_us - self._clock_us()) / 1_000_000

    def end(self, session: ConsoleSession) -> None:
        """End a session, and the streams of its pages."""
        session.ended.set()
        self._sessions = {key: each for key, each in self._sessions.items() if each is not session}

    def end_all(self) -> None:
        """End every session."""
        for session in list(self._sessions.values()):
            self.end(session)

    def _end_expired(self) -> None:
        for session in list(self._sessions.values()):
            if self.seconds_left(session) <= 0:
                self.end(session)


def _digest(secret: str) -> bytes:
    """Whoever measures how long a search takes learns nothing about the secrets."""
    return hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=32).digest()
