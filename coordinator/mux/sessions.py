"""The sessions machine: the live sessions, their owners, and the progress of their requests.

It decides in log order. The replies that clients may ask for again are in another table
(`replies`), which changes when a prepare is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

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
    key_of,
)
from coordinator.mux.types import (
    EndSession,
    Error,
    ExpireSession,
    LoggedRequest,
    LoggedSpan,
    RegisterSession,
    SessionCommand,
)
from viewstamp import limits
from viewstamp.machine.freezing import Entity, RowKind
from viewstamp.machine.tables import Table, UndoLog


class HeaderVerdict(Enum):
    """The outcome of a request whose header was not refused."""

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
    """Sessions that began and ended, and users whose credentials ended, each in order."""

    registered: tuple[Session, ...]
    ended: tuple[int, ...]
    users: tuple[int, ...]


def at_level(command: SessionCommand, feature_level: int) -> SessionCommand:
    """Return a command as builds of a lower feature level read it, which lack the new fields."""
    is_newer = isinstance(command, EndSession) and feature_level < limits.FEATURE_LEVEL_GUARDS
    return EndSession() if is_newer else command


class SessionsMachine:
    """The sessions of the cluster at one place of the log."""

    def __init__(self, codec: Codec) -> None:
        """Begin without sessions."""
        self._codec = codec
        self._undo = UndoLog()
        self._sessions: Table[int, Session] = Table(self._undo)
        self.ids_of_user: Table[int, tuple[int, ...]] = Table(self._undo)
        self.ids_of_nonce: Table[tuple[int, bytes], int] = Table(self._undo)
        self._minimums: Table[int, Minimum] = Table(self._undo)
        self._registered: list[Session] = []
        self._ended: list[int] = []
        self._users: list[int] = []
        # How many had ended, and whose credentials had, at the savepoint.
        self._marks = (0, 0)

    def get(self, session_id: int) -> Session | None:
        """Return a live session."""
        return self._sessions.get(session_id)

    def live(self) -> Iterator[Session]:
        """Yield the live sessions by ascending id."""
        for session_id in self._sessions.sorted_keys():
            yield self._existing(session_id)

    def of_user(self, user_id: int) -> tuple[int, ...]:
        """Return the live sessions of a user, ascending."""
        return self.ids_of_user.get(user_id) or ()

    def has_nonce(self, user_id: int, nonce: bytes) -> bool:
        """Whether a live session of the user was registered with that nonce."""
        return self.ids_of_nonce.get((user_id, nonce)) is not None

    def __len__(self) -> int:
        """Return the number of live sessions."""
        return len(self._sessions)

    def check_header(self, request: LoggedRequest) -> HeaderVerdict | SessionRefused:
        """Decide about a request with commands, once, at its first revision.

        A refused request does not use up its number: the client may send it again.
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
        self._undo.settle()  # even a transaction that is taken back has used its number
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
        """Return the minimum that a user's stamp lies below; None if the stamp is in force."""
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
                return self._end_calling(session_id, command.validate_only)
            case ExpireSession():
                return self._expire(command)

    def apply_effect(self, effect: ForSessions, revision: int) -> None:
        """Apply the effect on sessions of a users command at `revision`."""
        match effect:
            case UserEnded():
                # The end is later than the credentials of every token of the user.
                self._raise_minimum(effect.user_id, revision)
                for session_id in self.ids_of_user.get(effect.user_id) or ():
                    self._end(self._existing(session_id))
            case CredentialsChanged():
                self._raise_minimum(effect.user_id, effect.minimum, effect.minimum_token)
            case UserSessionsEnded(user_id, session_id, kept_id):
                for known_id in self.ids_of_user.get(user_id) or ():
                    if known_id != kept_id and session_id in (None, known_id):
                        self._end(self._existing(known_id))

    def savepoint(self) -> None:
        """Begin to remember changes, so that a transaction can be taken back."""
        self._undo.open_savepoint()
        self._marks = (len(self._ended), len(self._users))

    def keep(self) -> None:
        """Let the changes since the savepoint stand."""
        self._undo.keep_savepoint()

    def revert(self) -> None:
        """Take back the changes since the savepoint."""
        self._undo.revert_savepoint()
        ended, users = self._marks
        del self._ended[ended:], self._users[users:]

    def take_changes(self) -> SessionChanges:
        """Return which sessions, and whose credentials, began and ended since the last call."""
        changes = SessionChanges(tuple(self._registered), tuple(self._ended), tuple(self._users))
        for told in (self._registered, self._ended, self._users):
            told.clear()
        self._undo.settle()
        return changes

    def evicted(self, session_id: int) -> Error:
        """Return the refusal of a request of an ended session."""
        return self._codec.encode_refusal("SESSION_EVICTED", {"session": str(session_id)})

    def entities(self) -> Iterator[Entity]:
        """Return every entity of sessions and minimums as it is now, in no order."""
        values: list[SessionsValue] = [
            *self._sessions.rows.values(),
            *self._minimums.rows.values(),
        ]
        return encoded(values, self._codec.encode_entity)

    def row_kinds(self) -> tuple[RowKind[None], ...]:
        """Return the kinds of rows, ascending."""
        encode = self._codec.encode_entity
        return (
            RowKind(SESSION_KIND, lambda _: self._sessions, encode, key_of),
            RowKind(MINIMUM_KIND, lambda _: self._minimums, encode, key_of),
        )

    def load(self, values: Iterable[SessionsValue]) -> None:
        """Load sessions and minimums, which `restoring` has checked, into an empty machine."""
        for value in values:
            if isinstance(value, Session):
                self._sessions.put(value.session_id, value)
                # Ids ascend, and so does the tuple.
                others = self.ids_of_user.get(value.user_id) or ()
                self.ids_of_user.put(value.user_id, (*others, value.session_id))
                self.ids_of_nonce.put((value.user_id, value.nonce), value.session_id)
            elif isinstance(value, Minimum):
                self._minimums.put(value.user_id, value)
            self._undo.settle()  # at once: tens of thousands of them would fill the memory

    def _register(
        self, command: RegisterSession, user_id: int, revision: int
    ) -> SessionApplied | SessionRefused:
        """Open a session, or find the one that the same user opened with the same nonce."""
        known = self.ids_of_nonce.get((user_id, command.nonce))
        if known is not None:
            return SessionApplied(self._codec.encode_session_result(RegisterResult(known)))
        error = self._check_nonce(command.nonce) or self._check_limits(user_id)
        if error is not None:
            return SessionRefused(error)
        session = Session(revision, user_id, command.nonce)
        self._sessions.put(revision, session)
        # Ids grow, so the tuple stays ascending.
        self.ids_of_user.put(user_id, (*(self.ids_of_user.get(user_id) or ()), revision))
        self.ids_of_nonce.put((user_id, command.nonce), revision)
        self._registered.append(session)
        return SessionApplied(self._codec.encode_session_result(RegisterResult(revision)))

    def _end_calling(self, session_id: int, validate_only: bool) -> SessionApplied | SessionRefused:
        """End the session that carries the request."""
        if session_id == limits.GATEWAY_SESSION_ID:
            return SessionRefused(self._codec.encode_refusal("SESSION_REQUIRED", {}, "to_end"))
        session = self._sessions.get(session_id)
        if session is None:
            return SessionRefused(self.evicted(session_id))
        effect = None if validate_only else self._end(session)
        return SessionApplied(self._codec.encode_session_result(EndResult()), effect)

    def _expire(self, command: ExpireSession) -> SessionApplied:
        """End an idle session; a session used since the proposal lives on."""
        session = self._sessions.get(command.session_id)
        is_idle = session is not None and session.last_number <= command.last_request_number
        effect = self._end(session) if session is not None and is_idle else None
        return SessionApplied(self._codec.encode_session_result(ExpireResult()), effect)

    def _end(self, session: Session) -> bytes:
        """Forget a session and return the effect that ends its memberships."""
        others = self.ids_of_user.get(session.user_id) or ()
        left = tuple(other for other in others if other != session.session_id)
        if left:
            self.ids_of_user.put(session.user_id, left)
        else:
            self.ids_of_user.delete(session.user_id)
        self.ids_of_nonce.delete((session.user_id, session.nonce))
        self._sessions.delete(session.session_id)
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
        """Return why no further session may be opened; none is evicted to make room."""
        if len(self.ids_of_user.get(user_id) or ()) >= limits.SESSIONS_PER_USER_MAX:
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
