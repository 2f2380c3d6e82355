"""Sessions of the console begin, last and end as they should, and keep to their room."""

from __future__ import annotations

import pytest

from coordinator.console.bounds import SESSIONS_MAX, SESSIONS_PER_USER_MAX
from coordinator.console.console_sessions import ConsoleSession, ConsoleSessions, SessionsFull
from tests.coordinator.console.console_trial import HOUR_US

USER = 7


def session(user_id: int = USER, expires_us: int = HOUR_US) -> ConsoleSession:
    """A session of a user."""
    return ConsoleSession(user_id, "ada", "token", expires_us)


def test_session_is_found_until_it_expires() -> None:
    """It lasts as long as its token, and ends at that moment."""
    now_us = 0
    sessions = ConsoleSessions(lambda: now_us)
    made = session()
    secret = sessions.begin(made)
    now_us = HOUR_US - 1
    assert sessions.find(secret) is made
    now_us = HOUR_US
    assert sessions.find(secret) is None
    assert made.ended.is_set() and len(sessions) == 0


@pytest.mark.parametrize("secret", ["", "a", "\ud800", "x" * 10_000])
def test_guessed_secret_finds_nothing(secret: str) -> None:
    """What was not handed out stands for nobody."""
    sessions = ConsoleSessions(lambda: 0)
    sessions.begin(session())
    assert sessions.find(secret) is None


def test_secrets_differ_and_are_long() -> None:
    """No two sessions have the same secret, and none is short enough to be guessed."""
    sessions = ConsoleSessions(lambda: 0)
    secrets = {sessions.begin(session(user_id)) for user_id in range(100)}
    assert len(secrets) == 100
    assert min(map(len, secrets)) >= 43


def test_one_user_takes_only_a_share() -> None:
    """One login more than a user may have ends the user's oldest one, and nobody else's."""
    sessions = ConsoleSessions(lambda: 0)
    other = sessions.begin(session(USER + 1))
    own = [sessions.begin(session()) for _ in range(SESSIONS_PER_USER_MAX + 1)]
    assert sessions.find(own[0]) is None
    assert all(sessions.find(secret) for secret in (*own[1:], other))


def test_room_for_all_is_bounded_and_expired_ones_leave_it() -> None:
    """When all places are taken a login is refused, until a session has expired."""
    now_us = 0
    sessions = ConsoleSessions(lambda: now_us)
    for user_id in range(SESSIONS_MAX):
        sessions.begin(session(user_id))
    with pytest.raises(SessionsFull):
        sessions.begin(session(SESSIONS_MAX))
    now_us = HOUR_US
    sessions.begin(session(SESSIONS_MAX, 2 * HOUR_US))
    assert len(sessions) == 1


def test_token_is_not_shown() -> None:
    """Whoever logs a session does not log the token in it."""
    assert "token" not in repr(session()).replace("access_token", "")
