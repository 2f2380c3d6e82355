"""Idle sessions: who is proposed for expiry, and that nothing is kept of ended ones."""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.gateway.timers import SessionTimers
from coordinator.mux.entities import Session
from coordinator.stages.codec import EXPIRE_SESSION_CODE
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions

IDLE_MS = 100


class World:
    """A clock, some sessions, and what was proposed about them."""

    def __init__(self) -> None:
        """Begin with one session that has sent 5 requests."""
        self.now_ms = 1_000
        self.sessions = {7: Session(7, 1, b"", 5)}
        self.proposed: list[tuple[int, int]] = []
        self.timers = SessionTimers(self.live, self, lambda: self.now_ms, IDLE_MS)

    def live(self) -> Iterator[Session]:
        """Yield the sessions."""
        yield from self.sessions.values()

    def propose(self, code: int, request: bytes, due: int) -> None:
        """Remember a proposal."""
        assert (code, due) == (EXPIRE_SESSION_CODE, 0)
        expire = sessions.ExpireSessionRequest.FromString(request)
        self.proposed.append((expire.session_id, expire.last_request_number))

    def check_after(self, elapsed_ms: int) -> list[tuple[int, int]]:
        """Let time pass, check, and return what was proposed then."""
        self.now_ms += elapsed_ms
        self.proposed.clear()
        self.timers.check()
        return self.proposed


def test_idle_session_is_proposed_once_its_time_is_over() -> None:
    """A timer starts in full when it is first seen; its end names the last request."""
    world = World()
    assert world.check_after(10 * IDLE_MS) == []
    assert world.check_after(IDLE_MS - 1) == []
    assert world.check_after(1) == [(7, 5)]


def test_use_begins_the_time_anew() -> None:
    """Whatever shows life puts the end off."""
    world = World()
    world.check_after(0)
    world.now_ms += IDLE_MS - 1
    world.timers.used(7)
    assert world.check_after(IDLE_MS - 1) == []
    assert world.check_after(1) == [(7, 5)]


def test_open_streams_keep_a_session() -> None:
    """As long as any stream is open the session lives, and its time begins when it closes."""
    world = World()
    world.timers.stream_opened(7)
    world.timers.stream_opened(7)
    world.timers.stream_closed(7)
    assert world.check_after(10 * IDLE_MS) == []
    world.timers.stream_closed(7)
    assert world.check_after(IDLE_MS - 1) == []
    assert world.check_after(1) == [(7, 5)]


def test_nothing_is_kept_of_ended_sessions() -> None:
    """Streams that close and requests that come after the end leave no trace."""
    world = World()
    world.timers.stream_opened(7)
    world.sessions.clear()
    world.timers.used(7)
    world.timers.stream_closed(7)
    world.check_after(0)
    world.sessions[7] = Session(7, 1, b"", 5)
    assert world.check_after(IDLE_MS - 1) == []  # a timer of its own, not the old one's rest
