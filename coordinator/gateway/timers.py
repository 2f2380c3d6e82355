"""Idle sessions: soft timers at the primary, which propose the end of unused ones.

They begin anew with every primary. Clients talk only to the primary, so a backup does not see
sessions used: by timers of its own, every session that has not yet come back would be over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from coordinator.mux.entities import Session
from coordinator.stages.codec import EXPIRE_SESSION_CODE
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.limits import SESSION_IDLE_TIMEOUT_MS, SESSION_SPARE_IDLE_MS

CHECK_INTERVAL_MS: Final = 10_000
# Ends a session in any case: no number of 64 bits is later than this.
_ANY_NUMBER: Final = 2**64 - 1


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
        self._leads = False
        self._began_ms = clock_ms()

    def begin(self) -> None:
        """Begin every timer anew: this replica leads from now on."""
        self._last_used_ms.clear()
        self._began_ms = self._clock_ms()
        self._leads = True

    def stop(self) -> None:
        """Propose nothing more: another replica leads, or will."""
        self._leads = False

    def used(self, session_id: int) -> None:
        """Note that the session showed life."""
        self._last_used_ms[session_id] = self._clock_ms()

    def stream_opened(self, session_id: int) -> None:
        """Note that a Submit stream of the session is open."""
        self._streams[session_id] += 1

    def stream_closed(self, session_id: int) -> None:
        """Note that the stream is closed; the session may go idle from then on."""
        self._streams[session_id] -= 1
        if not self._streams[session_id]:
            del self._streams[session_id]
        self.used(session_id)

    def evict(self, session_id: int) -> None:
        """Propose the end of a session, used or not."""
        self._propose_end(session_id, _ANY_NUMBER)

    def spare(self, session_ids: Sequence[int], *, any_will_do: bool) -> int | None:
        """Return the session of these that was used longest ago, and count it as used now.

        None if none can be spared: each has an open stream or was used lately, unless any will do.
        """
        now_ms = self._clock_ms()
        known = [(self._last_used_ms.get(s, self._began_ms), s) for s in session_ids]
        idle = [
            (used_ms, session_id)
            for used_ms, session_id in known
            if session_id not in self._streams and now_ms - used_ms >= SESSION_SPARE_IDLE_MS
        ]
        candidates = idle or (known if any_will_do else [])
        if not candidates:
            return None
        _, session_id = min(candidates)
        self._last_used_ms[session_id] = now_ms
        return session_id

    async def run(self) -> None:
        """Propose the end of idle sessions, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_MS / 1000)
            self.check()

    def check(self) -> None:
        """Propose the end of every session idle for too long, while this replica leads."""
        if not self._leads:
            return
        now_ms = self._clock_ms()
        # Built anew each time, so that nothing is kept of ended sessions.
        known_ms, self._last_used_ms = self._last_used_ms, {}
        for session in self._live():
            # A timer unknown to this process starts in full.
            last_used_ms = known_ms.get(session.session_id, now_ms)
            self._last_used_ms[session.session_id] = last_used_ms
            is_idle = now_ms - last_used_ms >= self._idle_timeout_ms
            if is_idle and session.session_id not in self._streams:
                self._propose_end(session.session_id, session.last_number)

    def _propose_end(self, session_id: int, last_number: int) -> None:
        request = sessions_pb2.ExpireSessionRequest(
            session_id=session_id, last_request_number=last_number
        )
        self._proposer.propose(
            EXPIRE_SESSION_CODE, request.SerializeToString(deterministic=True), 0
        )
