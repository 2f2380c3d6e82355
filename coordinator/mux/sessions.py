"""The sessions machine: which sessions live, whose they are, and how far their requests came.

It decides at log order. The replies it lets clients repeat are another table (`replies`), which
changes when a prepare is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from coordinator.mux.catalog_types import Entity
from coordinator.mux.codec import (
    Codec,
    CredentialsChanged,
    EndResult,
    ExpireResult,
    ForSessions,
    RegisterResult,
    SessionEnded,
    UserEnded,
    UserSessionsEnded,
)
from coordinator.mux.entities import (
    MINIMUM_KIND,
    SESSION_KIND,
    Minimum,
    Session,
    SessionsValue,
    encoded,
    number_key,
)
from coordinator.mux.freezing import RowKind
from coordinator.mux.types import (
    EndSession,
    Error,
    ExpireSession,
    LoggedRequest,
    LoggedSpan,
    RegisterSession,
    SessionCommand,
)
from coordinator.mux.undo import EntityTable, Table, UndoLog
from viewstamp import limits


class HeaderVerdict(Enum):
    """What becomes of a request whose header was not refused."""

    APPLY = "apply"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class SessionApplied:
    """A session command took effect: its result as one frame, and the effect for groups."""

    result: bytes
    effect: bytes | None = None


@dataclass(frozen=True, slots=True)
class SessionRefused:
    """A session command, or a whole request, was refused."""

    error: Error


@dataclass(frozen=True, slots=True)
class SessionChanges:
    """Which sessions began and ended, and whose credentials, in the order in which they did."""

    registered: tuple[Session, ...]
    ended: tuple[int, ...]
    users: tuple[int, ...]


class SessionsMachine:
    """The sessions of the cluster at one place of the log."""

    def __init__(self, codec: Codec) -> None:
        """Begin without sessions."""
        self._codec = codec
        self._undo = UndoLog()
        self._sessions: EntityTable[int, Session] = EntityTable(self._undo)
        self._of_user: Table[int, tuple[int, ...]] = Table(self._undo)
        self._of_nonce: Table[tuple[int, bytes], int] = Table(self._undo)
        self._minimums: EntityTable[int, Minimum] = EntityTable(self._undo)
        self._registered: list[Session] = []
        self._ended: list[int] = []
        self._users: list[int] = []

    def get(self, session_id: int) -> Session | None:
        """Return a live session."""
        return self._sessions.get(session_id)

    def live(self) -> Iterator[Session]:
        """Yield the live sessions by ascending id."""
        for session_id in sorted(self._sessions.keys()):
            yield self._existing(session_id)

    def of_user(self, user_id: int) -> tuple[int, ...]:
        """Return the live sessions of a user, ascending."""
        return self._of_user.get(user_id) or ()

    def has_nonce(self, user_id: int, nonce: bytes) -> bool:
        """Whether a live session of the user was registered with that nonce."""
        return self._of_nonce.get((user_id, nonce)) is not None

    def __len__(self) -> int:
        """Return the number of live sessions."""
        return len(self._sessions)

    def check_header(self, request: LoggedRequest) -> HeaderVerdict | SessionRefused:
        """Decide about a request with commands, once, at its first revision.

        A request that is refused does not use up its number: the client may send it again.
        """
        if request.session_id == limits.GATEWAY_SESSION_ID:
            return HeaderVerdict.APPLY
        session = self._sessions.get(request.session_id)
        if session is None:
            return SessionRefused(self.evicted(request.session_id))
        for span in request.spans:
            error = self._check_owner(session, span) or self.check_principal(span)
            if error is not None:
                return SessionRefused(error)
        if request.number <= session.last_number:
            return HeaderVerdict.DUPLICATE
        if request.number > session.last_number + 1:
            return SessionRefused(self._gap(session, request.number))
        used = Session(session.session_id, session.user_id, session.nonce, request.number)
        self._sessions.put(request.session_id, used)
        return HeaderVerdict.APPLY

    def check_principal(self, span: LoggedSpan) -> Error | None:
        """Return why the span's principal is refused: its credentials have changed since."""
        minimum = self.minimum_above(span.user_id, span.credential_revision)
        if minimum is None:
            return None
        return self._codec.encode_refusal(
            "UNAUTHENTICATED",
            {"user": str(span.user_id), "minimum": str(minimum)},
            "credentials_changed",
        )

    def minimum_above(self, user_id: int, stamp: int) -> int | None:
        """Return the minimum that a stamp of a user lies below; None if it is in force."""
        known = self._minimums.get(user_id)
        if known is None or not known.refuses(stamp):
            return None
        if stamp & limits.TOKEN_STAMP:
            return max(known.minimum, known.minimum_token)
        return known.minimum

    def apply(
        self, command: SessionCommand, span: LoggedSpan, session_id: int, revision: int
    ) -> SessionApplied | SessionRefused:
        """Apply one command of `span`, which came in a request of `session_id`."""
        match command:
            case RegisterSession():
                return self._register(command, span.user_id, revision)
            case EndSession():
                return self._end_calling(session_id)
            case ExpireSession():
                return self._expire(command)

    def apply_effect(self, effect: ForSessions, revision: int) -> None:
        """Apply what a command of users at `revision` means for sessions."""
        match effect:
            case UserEnded():
                # Every token of the user was issued for credentials older than its end.
                self._raise_minimum(effect.user_id, revision)
                for session_id in self._of_user.get(effect.user_id) or ():
                    self._end(self._existing(session_id))
            case CredentialsChanged():
                self._raise_minimum(effect.user_id, effect.minimum, effect.minimum_token)
            case UserSessionsEnded(user_id, session_id, kept_id):
                for known_id in self._of_user.get(user_id) or ():
                    if known_id != kept_id and session_id in (None, known_id):
                        self._end(self._existing(known_id))

    def savepoint(self) -> None:
        """Begin to remember changes, so that a transaction can be taken back."""
        self._undo.savepoint()

    def keep(self) -> None:
        """Let the changes since the savepoint stand."""
        self._undo.keep()

    def revert(self) -> None:
        """Take back the changes since the savepoint."""
        self._undo.revert()

    def take_changes(self) -> SessionChanges:
        """Return which sessions, and whose credentials, began and ended since the last call."""
        changes = SessionChanges(tuple(self._registered), tuple(self._ended), tuple(self._users))
        for told in (self._registered, self._ended, self._users):
            told.clear()
        return changes

    def evicted(self, session_id: int) -> Error:
        """Return the refusal of a request of a session that is no more."""
        return self._codec.encode_refusal("SESSION_EVICTED", {"session": str(session_id)})

    def entities(self) -> Iterator[Entity]:
        """Return every entity of sessions and minimums as it is now, in no order."""
        values: list[SessionsValue] = [*self._sessions.values(), *self._minimums.values()]
        return encoded(values, self._codec.encode_entity)

    def row_kinds(self) -> tuple[RowKind[Any, Any], ...]:
        """Return the kinds of rows, ascending."""
        sessions, minimums, encode = self._sessions, self._minimums, self._codec.encode_entity
        return (
            RowKind(SESSION_KIND, sessions.log, sessions.keys, sessions.get, number_key, encode),
            RowKind(MINIMUM_KIND, minimums.log, minimums.keys, minimums.get, number_key, encode),
        )

    def load(self, values: Iterable[SessionsValue]) -> None:
        """Take over sessions and minimums, which `restoring` has checked, when there are none."""
        for value in values:
            if isinstance(value, Session):
                self._sessions.load(value.session_id, value)
                # Ids ascend, and so does the tuple.
                others = self._of_user.get(value.user_id) or ()
                self._of_user.load(value.user_id, (*others, value.session_id))
                self._of_nonce.load((value.user_id, value.nonce), value.session_id)
            elif isinstance(value, Minimum):
                self._minimums.load(value.user_id, value)

    def _register(
        self, command: RegisterSession, user_id: int, revision: int
    ) -> SessionApplied | SessionRefused:
        """Open a session, or find the one that the same user opened with the same nonce."""
        known = self._of_nonce.get((user_id, command.nonce))
        if known is not None:
            return SessionApplied(self._codec.encode_session_result(RegisterResult(known)))
        error = self._check_nonce(command.nonce) or self._check_limits(user_id)
        if error is not None:
            return SessionRefused(error)
        session = Session(revision, user_id, command.nonce)
        self._sessions.put(revision, session)
        # Ids grow, so the tuple stays ascending.
        self._of_user.put(user_id, (*(self._of_user.get(user_id) or ()), revision))
        self._of_nonce.put((user_id, command.nonce), revision)
        self._registered.append(session)
        return SessionApplied(self._codec.encode_session_result(RegisterResult(revision)))

    def _end_calling(self, session_id: int) -> SessionApplied | SessionRefused:
        """End the session that carries the request."""
        if session_id == limits.GATEWAY_SESSION_ID:
            return SessionRefused(self._codec.encode_refusal("SESSION_REQUIRED", {}, "to_end"))
        session = self._sessions.get(session_id)
        if session is None:
            return SessionRefused(self.evicted(session_id))
        effect = self._end(session)
        return SessionApplied(self._codec.encode_session_result(EndResult()), effect)

    def _expire(self, command: ExpireSession) -> SessionApplied:
        """End an idle session; one that was used since the proposal lives on."""
        session = self._sessions.get(command.session_id)
        is_idle = session is not None and session.last_number <= command.last_request_number
        effect = self._end(session) if session is not None and is_idle else None
        return SessionApplied(self._codec.encode_session_result(ExpireResult()), effect)

    def _end(self, session: Session) -> bytes:
        """Forget a session and return the effect that ends its memberships."""
        others = self._of_user.get(session.user_id) or ()
        left = tuple(other for other in others if other != session.session_id)
        if left:
            self._of_user.put(session.user_id, left)
        else:
            self._of_user.drop(session.user_id)
        self._of_nonce.drop((session.user_id, session.nonce))
        self._sessions.drop(session.session_id)
        self._undo.record(self._ended.pop)
        self._ended.append(session.session_id)
        return self._codec.encode_effect(SessionEnded(session.session_id))

    def _raise_minimum(self, user_id: int, minimum: int, minimum_token: int = 0) -> None:
        """Refuse older stamps of the user from here on; a minimum never falls."""
        known = self._minimums.get(user_id) or Minimum(user_id, 0)
        raised = Minimum(
            user_id, max(minimum, known.minimum), max(minimum_token, known.minimum_token)
        )
        if raised != known:
            self._minimums.put(user_id, raised)
            self._undo.record(self._users.pop)
            self._users.append(user_id)

    def _existing(self, session_id: int) -> Session:
        """Return a session that an index names."""
        session = self._sessions.get(session_id)
        assert session is not None, f"an index names session {session_id}, which is not there"
        return session

    def _check_owner(self, session: Session, span: LoggedSpan) -> Error | None:
        """Return why the span's principal may not use the session."""
        if span.user_id == session.user_id:
            return None
        return self._codec.encode_refusal(
            "PERMISSION_DENIED",
            {"session": str(session.session_id), "user": str(span.user_id)},
            "session_of_another",
        )

    def _check_nonce(self, nonce: bytes) -> Error | None:
        """Return why a nonce is refused."""
        if len(nonce) == limits.SESSION_NONCE_BYTES:
            return None
        return self._codec.encode_refusal(
            "MALFORMED_REQUEST",
            {
                "field": "nonce",
                "bytes": str(len(nonce)),
                "bytes_due": str(limits.SESSION_NONCE_BYTES),
            },
            "nonce",
        )

    def _check_limits(self, user_id: int) -> Error | None:
        """Return why there may be no further session; none is evicted to make room."""
        if len(self._of_user.get(user_id) or ()) >= limits.SESSIONS_PER_USER_MAX:
            of_user = {"user": str(user_id), "limit": str(limits.SESSIONS_PER_USER_MAX)}
            return self._codec.encode_refusal("SESSION_LIMIT", of_user, "of_user")
        if len(self._sessions) >= limits.SESSIONS_MAX:
            in_all = {"limit": str(limits.SESSIONS_MAX)}
            return self._codec.encode_refusal("SESSION_LIMIT", in_all, "of_cluster")
        return None

    def _gap(self, session: Session, number: int) -> Error:
        """Return the refusal of a request that skips a number."""
        resend_from = session.last_number + 1
        return self._codec.encode_refusal(
            "REQUEST_GAP",
            {
                "session": str(session.session_id),
                "number": str(number),
                "resend_from": str(resend_from),
            },
        )
