"""Reads about sessions, for their own users and for managers of users."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message

from coordinator.gateway.local_reads import parsed
from coordinator.mux import types as mux
from coordinator.mux.entities import Session
from coordinator.mux.sessions import SessionsMachine
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.limits import FEATURE_LEVEL_GUARDS, FEATURE_LEVEL_MAX, MESSAGE_BYTES_MAX
from viewstamp.paging import PagedList, page_size
from viewstamp.routing import MethodKind, methods_of_file

_METHODS: Final = {
    method.code: method
    for method in methods_of_file(sessions_pb2.DESCRIPTOR)
    if method.kind is MethodKind.QUERY
}
_OF_OTHERS: Final = next(m.code for m in _METHODS.values() if m.name == "ListUserSessions")
_OF_ALL: Final = PagedList("ListUserSessions")
PageRequest: TypeAlias = sessions_pb2.ListSessionsRequest | sessions_pb2.ListUserSessionsRequest


class SessionReads:
    """Answers ListSessions and ListUserSessions from the sessions of this replica."""

    def __init__(
        self,
        sessions: SessionsMachine,
        level_in_force: Callable[[], int] = lambda: FEATURE_LEVEL_MAX,
    ) -> None:
        self._sessions = sessions
        self._level_in_force = level_in_force

    @property
    def codes(self) -> Collection[int]:
        """The methods."""
        return _METHODS.keys()

    def query(self, item: mux.QueryItem) -> mux.QueryOutcome:
        """Answer at the position of the read."""
        requests, errors = parsed(item, _METHODS)
        found = list(errors)
        # Once for all reads of the span.
        everybody = list(self._sessions.live()) if item.code == _OF_OTHERS else []
        frames = [mux.EMPTY_FRAME] * item.count
        room = MESSAGE_BYTES_MAX // 2
        for index, request in requests.items():
            try:
                if room <= 0:
                    raise _too_much()
                frames[index] = frame(self._answer(item, request, everybody).SerializeToString())
                room -= len(frames[index])
            except Refusal as refusal:
                found.append(mux.IndexedError(index, refusal.to_error().SerializeToString()))
        found.sort(key=lambda error: error.index)
        return mux.QueryOutcome(item.query_id, b"".join(frames), tuple(found))

    def _answer(self, item: mux.QueryItem, request: Any, everybody: Sequence[Session]) -> Message:
        if isinstance(request, sessions_pb2.ListSessionsRequest):
            return self._page_of_own(request, item.user_id or 0)
        return self._page(request, everybody)

    def _page_of_own(
        self, request: sessions_pb2.ListSessionsRequest, user_id: int
    ) -> sessions_pb2.ListSessionsResponse:
        own = self._of_user(user_id)
        if self._level_in_force() < FEATURE_LEVEL_GUARDS:
            # Replicas of an older build would answer the next page with all of them again.
            return sessions_pb2.ListSessionsResponse(sessions=_infos(own))
        found, token = _cut(own, request, PagedList("ListSessions", user_id))
        return sessions_pb2.ListSessionsResponse(sessions=_infos(found), next_page_token=token)

    def _of_user(self, user_id: int) -> list[Session]:
        found = map(self._sessions.get, self._sessions.of_user(user_id))
        return [session for session in found if session is not None]

    def _page(
        self, request: sessions_pb2.ListUserSessionsRequest, everybody: Sequence[Session]
    ) -> sessions_pb2.ListUserSessionsResponse:
        sessions, pages = everybody, _OF_ALL
        if request.HasField("user_id"):
            sessions = self._of_user(request.user_id)
            pages = PagedList("ListUserSessions", request.user_id)
        found, token = _cut(sessions, request, pages)
        return sessions_pb2.ListUserSessionsResponse(sessions=_infos(found), next_page_token=token)


def _cut(
    sessions: Sequence[Session], request: PageRequest, pages: PagedList
) -> tuple[Sequence[Session], str]:
    """Return the sessions on a page, and the token of the next page. Raises Refusal."""
    size = page_size(request.page_size)
    after = pages.id_after(request.page_token)
    start = bisect_right(sessions, after, key=lambda session: session.session_id)
    # One more than asked for tells whether there is another page.
    rest = sessions[start : start + size + 1]
    return rest[:size], pages.next_id_token([each.session_id for each in rest], size)


def _too_much() -> Refusal:
    return Refusal(
        Reason.REASON_COMMAND_TOO_LARGE,
        f"the answers exceed {MESSAGE_BYTES_MAX // 2} bytes together: request less at once",
        limit=MESSAGE_BYTES_MAX // 2,
    )


def _infos(sessions: Iterable[Session]) -> Iterator[sessions_pb2.SessionInfo]:
    for session in sessions:
        yield sessions_pb2.SessionInfo(
            session_id=session.session_id,
            user_id=session.user_id,
            last_request_number=session.last_number,
        )
