"""Idle sessions: soft timers at the primary, which propose the end of those that were not used."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from coordinator.mux.entities import Session
from coordinator.stages.codec import EXPIRE_SESSION_CODE
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.limits import SESSION_IDLE_TIMEOUT_MS

CHECK_INTERVAL_MS: Final = 10_000


class Proposer(Protocol):
    """The proposals as seen from here."""

    def propose(self, code: int, request: bytes, due: int) -> None:
        """Sequence an internal command."""


class SessionTimers:
    """When each session last showed life. A session with an open stream is alive."""

    def __init__(
        self,
        live: Callable[[], Iterator[Session]],
        proposer: Proposer,
        clock_ms: Callable[[], int],
        idle_timeout_ms: int = SESSION_IDLE_TIMEOUT_MS,
    ) -> None:
        self._live = live
        self._proposer = proposer
        self._clock_ms = clock_ms
        self._idle_timeout_ms = idle_timeout_ms
        self._last_used_ms: dict[int, int] = {}
        self._streams: Counter[int] = Counter()

    def used(self, session_id: int) -> None:
        """The session showed life."""
        self._last_used_ms[session_id] = self._clock_ms()

    def stream_opened(self, session_id: int) -> None:
        """A Submit stream of the session is open."""
        self._streams[session_id] += 1

    def stream_closed(self, session_id: int) -> None:
        """It is closed; the session may go idle from here on."""
        self._streams[session_id] -= 1
        if not self._streams[session_id]:
            del self._streams[session_id]
        self.used(session_id)

    async def run(self) -> None:
        """Propose the end of idle sessions, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_MS / 1000)
            self.check()

    def check(self) -> None:
        """Propose the end of every session that was idle for too long."""
        now_ms = self._clock_ms()
        # Built anew each time, so that nothing is kept of sessions that are no more.
        known_ms, self._last_used_ms = self._last_used_ms, {}
        for session in self._live():
            # A timer that this process has not seen running starts in full.
            last_used_ms = known_ms.get(session.session_id, now_ms)
            self._last_used_ms[session.session_id] = last_used_ms
            is_idle = now_ms - last_used_ms >= self._idle_timeout_ms
            if is_idle and session.session_id not in self._streams:
                self._propose_end(session)

    def _propose_end(self, session: Session) -> None:
        request = sessions_pb2.ExpireSessionRequest(
            session_id=session.session_id, last_request_number=session.last_number
        )
        self._proposer.propose(
            EXPIRE_SESSION_CODE, request.SerializeToString(deterministic=True), 0
        )
