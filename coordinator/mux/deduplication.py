"""The primary's answer to a request number, before anything else is done for the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from coordinator.mux.entities import Session
from coordinator.mux.replies import ReplyTable
from coordinator.mux.sessions import SessionsMachine
from coordinator.mux.types import RequestReply
from viewstamp import limits


@dataclass(frozen=True, slots=True)
class New:
    """Not seen before and next in turn: to be sequenced."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Admitted, not applied yet: join those who wait for it."""


@dataclass(frozen=True, slots=True)
class Cached:
    """Applied: return the same reply again."""

    reply: RequestReply


@dataclass(frozen=True, slots=True)
class Gap:
    """The request skips a number (REQUEST_GAP)."""

    resend_from: int


@dataclass(frozen=True, slots=True)
class TooOld:
    """The reply was acknowledged and forgotten (REQUEST_TOO_OLD)."""


@dataclass(frozen=True, slots=True)
class WindowFull:
    """More than SESSION_WINDOW_REQUESTS past `acked`: acknowledge first (OVERLOADED)."""

    acked: int


@dataclass(frozen=True, slots=True)
class AckedAhead:
    """The request acknowledges replies that were never given (MALFORMED_REQUEST)."""

    last_applied: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """The session has ended (SESSION_EVICTED)."""


Admittance: TypeAlias = New | InFlight | Cached | Gap | TooOld | WindowFull | AckedAhead | Evicted


class Admission:
    """Soft state of one replica beside the sessions machine: request numbers under way.

    Call `admit` for each New request that is sequenced, and `reset` when this replica stops or
    begins to be primary. The mux itself reports what is committed and what is applied.
    """

    def __init__(self, sessions: SessionsMachine, replies: ReplyTable) -> None:
        """Begin with nothing under way."""
        self._sessions = sessions
        self._replies = replies
        self._admitted: dict[int, tuple[int, ...]] = {}
        self._committed: dict[int, tuple[int, ...]] = {}

    def lookup(self, session_id: int, number: int, acked: int = 0) -> Admittance:
        """Decide about a request with commands; its user was compared with `Session.user_id`."""
        if number in self._committed.get(session_id, ()):
            return InFlight()
        session = self._sessions.get(session_id)
        if session is None:
            return Evicted()
        if number in self._admitted.get(session_id, ()):
            return InFlight()
        return self._lookup_settled(session, number, acked)

    def admit(self, session_id: int, number: int) -> None:
        """Remember a request that is handed to the log."""
        if session_id != limits.GATEWAY_SESSION_ID:
            _add(self._admitted, session_id, number)

    def commit(self, session_id: int, number: int) -> None:
        """Remember a request whose header was accepted at log order."""
        if session_id != limits.GATEWAY_SESSION_ID:
            _add(self._committed, session_id, number)

    def apply(self, session_id: int, number: int) -> None:
        """Forget a request that has its answer."""
        _remove(self._admitted, session_id, number)
        _remove(self._committed, session_id, number)

    def withdraw(self, session_id: int, number: int) -> None:
        """Forget an admitted request whose outcome this replica can no longer tell.

        If it is committed all the same, that is known until it is applied.
        """
        _remove(self._admitted, session_id, number)

    def reset(self) -> None:
        """Forget what was admitted and may never be committed."""
        self._admitted.clear()

    def _lookup_settled(self, session: Session, number: int, acked: int) -> Admittance:
        """Decide about a request that is not under way."""
        window = self._replies.window(session.session_id)
        replies = window.replies if window is not None else {}
        if number in replies:
            return Cached(replies[number])
        if number <= session.last_number:
            return TooOld()
        last = max(session.last_number, *self._admitted.get(session.session_id, (0,)))
        if number > last + 1:
            return Gap(last + 1)
        last_applied = window.last_applied if window is not None else 0
        if acked > last_applied:
            return AckedAhead(last_applied)
        if number > acked + limits.SESSION_WINDOW_REQUESTS:
            return WindowFull(acked)
        return New()


def _add(numbers: dict[int, tuple[int, ...]], session_id: int, number: int) -> None:
    """Add a number of a session."""
    known = numbers.get(session_id, ())
    if number not in known:
        numbers[session_id] = (*known, number)


def _remove(numbers: dict[int, tuple[int, ...]], session_id: int, number: int) -> None:
    """Remove a number of a session if it is there."""
    left = tuple(known for known in numbers.get(session_id, ()) if known != number)
    if left:
        numbers[session_id] = left
    else:
        numbers.pop(session_id, None)
