"""Room for a new session of a user who has the maximum.

Programs that ended abruptly leave sessions behind, and nobody would get in until those time out. So
the session used longest ago gives way, by a command in the log like the end of an idle session,
before the registration. It must have no open stream here and have been unused for a while, as far
as this primary knows. Root must never be locked out: for root any session will do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.protobuf.message import DecodeError

from coordinator.gateway.timers import SessionTimers
from coordinator.mux.sessions import SessionsMachine
from coordinator.replica.batcher import LooseCommand, Reply
from coordinator.stages.codec import EXPIRE_SESSION_CODE
from viewstamp import limits
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2


class SessionRoom:
    """Ends a session that can be spared before another one is registered."""

    def __init__(
        self,
        sessions: SessionsMachine,
        timers: SessionTimers,
        submit: Callable[[LooseCommand], None],
    ) -> None:
        self._sessions = sessions
        self._timers = timers
        self._submit = submit

    async def make(self, user_id: int, registration: bytes) -> None:
        """Make room if there is none; if no session can be spared, the registration is refused.

        Raises Refusal if the log takes nothing.
        """
        of_user = self._sessions.of_user(user_id)
        if len(of_user) < limits.SESSIONS_PER_USER_MAX:
            return
        if self._is_known(user_id, registration):
            return
        spared = self._timers.spare(of_user, any_will_do=user_id == limits.ROOT_USER_ID)
        session = None if spared is None else self._sessions.get(spared)
        if session is not None:
            await self._end(session.session_id, session.last_number)

    def _is_known(self, user_id: int, registration: bytes) -> bool:
        """Return whether the registration is a retry, or malformed: neither needs room."""
        try:
            nonce = sessions_pb2.RegisterSessionRequest.FromString(registration).nonce
        except DecodeError:
            return True
        return self._sessions.has_nonce(user_id, nonce)

    async def _end(self, session_id: int, last_number: int) -> None:
        request = sessions_pb2.ExpireSessionRequest(
            session_id=session_id, last_request_number=last_number
        )
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        encoded = request.SerializeToString(deterministic=True)
        user_id = limits.SYSTEM_USER_ID
        self._submit(LooseCommand(EXPIRE_SESSION_CODE, encoded, user_id, 0, "", future))
        await future
