"""Idle sessions: which are proposed for expiry, and that no trace is kept of ended ones."""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.gateway.timers import SessionTimers
from coordinator.mux.entities import Session
from coordinator.mux.sessions import SessionsMachine
from coordinator.mux.types import ExpireSession, LoggedRequest, LoggedSpan, RegisterSession
from coordinator.stages.codec import EXPIRE_SESSION_CODE, ProtobufCodec
from viewstamp import limits
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions

IDLE_MS = 100


class TimersTrial:
    """A clock, some sessions, and the proposals about them."""

    def __init__(self) -> None:
        """Begin with one session that has sent 5 requests."""
        self.now_ms = 1_000
        self.sessions = {7: Session(7, 1, b"", 5)}
        self.proposed: list[tuple[int, int]] = []
        self.timers = SessionTimers(self.live, self, lambda: self.now_ms, IDLE_MS)
        self.timers.begin()

    def live(self) -> Iterator[Session]:
        """Yield the sessions."""
        yield from self.sessions.values()

    def propose(self, code: int, request: bytes, due: int) -> None:
        """Remember a proposal."""
        assert (code, due) == (EXPIRE_SESSION_CODE, 0)
        expire = sessions.ExpireSessionRequest.FromString(request)
        self.proposed.append((expire.session_id, expire.last_request_number))

    def check_after(self, elapsed_ms: int) -> list[tuple[int, int]]:
        """Let time pass, check, and return what was proposed."""
        self.now_ms += elapsed_ms
        self.proposed.clear()
        self.timers.check()
        return self.proposed


def test_idle_session_is_proposed_once_its_time_is_over() -> None:
    """A timer starts in full when its session is first seen; the expiry names the last request."""
    world = TimersTrial()
    assert world.check_after(10 * IDLE_MS) == []
    assert world.check_after(IDLE_MS - 1) == []
    assert world.check_after(1) == [(7, 5)]


def test_use_begins_the_time_anew() -> None:
    """Every sign of life postpones the end."""
    world = TimersTrial()
    world.check_after(0)
    world.now_ms += IDLE_MS - 1
    world.timers.used(7)
    assert world.check_after(IDLE_MS - 1) == []
    assert world.check_after(1) == [(7, 5)]


def test_open_streams_keep_a_session() -> None:
    """A session with an open stream lives; its idle time begins when the last stream closes."""
    world = TimersTrial()
    world.timers.stream_opened(7)
    world.timers.stream_opened(7)
    world.timers.stream_closed(7)
    assert world.check_after(10 * IDLE_MS) == []
    world.timers.stream_closed(7)
    assert world.check_after(IDLE_MS - 1) == []
    assert world.check_after(1) == [(7, 5)]


def test_nothing_is_kept_of_ended_sessions() -> None:
    """Streams that close and requests that come after the end leave no trace."""
    world = TimersTrial()
    world.timers.stream_opened(7)
    world.sessions.clear()
    world.timers.used(7)
    world.timers.stream_closed(7)
    world.check_after(0)
    world.sessions[7] = Session(7, 1, b"", 5)
    assert world.check_after(IDLE_MS - 1) == []  # a timer of its own, not the rest of the old one


def test_timers_begin_anew_with_a_primary() -> None:
    """A backup counts no idle time, so a session is alive when its client returns after a
    failover."""
    world = TimersTrial()
    world.timers.stop()
    assert world.check_after(10 * IDLE_MS) == []
    world.timers.begin()
    assert world.check_after(IDLE_MS - 1) == []
    world.timers.used(7)
    world.timers.stop()
    assert world.check_after(10 * IDLE_MS) == []
    world.timers.begin()
    assert world.check_after(0) == []
    assert world.check_after(IDLE_MS) == [(7, 5)]


def test_who_can_be_spared() -> None:
    """The session unused longest gives way, none with an open stream, and each is named once."""
    world = TimersTrial()
    idle_ms = limits.SESSION_SPARE_IDLE_MS
    for session_id in (7, 8, 9):
        world.now_ms += 1
        world.timers.used(session_id)
    world.timers.stream_opened(7)
    assert world.timers.spare((7, 8, 9), any_will_do=False) is None
    world.now_ms += idle_ms
    spared = [world.timers.spare((7, 8, 9), any_will_do=False) for _ in range(3)]
    assert spared == [8, 9, None]
    # Even so root gets in, at the cost of the session that was unused longest.
    assert world.timers.spare((7, 8, 9), any_will_do=True) == 7
    # A session that a new primary has not seen in use counts from when that primary began to lead.
    world.timers.begin()
    assert world.timers.spare((10,), any_will_do=False) is None
    world.now_ms += idle_ms
    assert world.timers.spare((10,), any_will_do=False) == 10


def test_a_session_can_be_ended_in_any_case() -> None:
    """Until its session gives way a client may send only numbers up to the one that was named."""
    world = TimersTrial()
    world.timers.used(7)
    world.timers.evict(7)
    ((session_id, last_number),) = world.proposed
    machine = SessionsMachine(ProtobufCodec())
    span = LoggedSpan(1, 1, b"", 1, 1)
    machine.apply(RegisterSession(b"n" * 16), span, 0, session_id)
    machine.check_header(LoggedRequest(session_id, 1, 0, (span,)))
    machine.apply(ExpireSession(session_id, last_number), span, 0, 9)
    assert machine.get(session_id) is None
