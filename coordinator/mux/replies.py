"""The replies that clients have not acknowledged, byte for byte; changed by applied prepares
only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from coordinator.mux.codec import Codec
from coordinator.mux.entities import (
    REPLY_KIND,
    WINDOW_KIND,
    Session,
    SessionsValue,
    WindowRow,
    encoded,
    key_of,
)
from coordinator.mux.types import RequestReply
from viewstamp.machine.freezing import Entity, RowKind
from viewstamp.machine.tables import ABSENT, DerivedTable

# The memory of a kept reply beside its bytes: objects and dictionary slots, roughly.
REPLY_OVERHEAD_BYTES: Final = 256
# The memory of each refusal in it: an object, its bytes, a place in the tuple.
ERROR_OVERHEAD_BYTES: Final = 128


@dataclass(slots=True)
class ReplyWindow:
    """The kept replies of one session by number, only those above `acked`.

    `user_id` and `weight` serve admission and are not part of the state.
    """

    user_id: int
    acked: int = 0
    last_applied: int = 0
    replies: dict[int, RequestReply] = field(default_factory=dict)
    weight: int = 0


class ReplyTable:
    """The windows of the sessions that live at the last applied prepare."""

    def __init__(self, codec: Codec) -> None:
        """Begin without windows."""
        self._codec = codec
        self._windows: dict[int, ReplyWindow] = {}
        self._bytes = 0
        self._of_user: dict[int, int] = {}
        # As the section has them; replies by session id and number.
        self._window_rows = DerivedTable(self._windows.keys, self._window_row)
        self._reply_rows = DerivedTable(self._reply_keys, self._reply_row)

    @property
    def replies_bytes(self) -> int:
        """Bytes of all replies kept; admission compares it with SESSION_REPLIES_BYTES_MAX."""
        return self._bytes

    @property
    def holder_count(self) -> int:
        """How many users have replies here."""
        return len(self._of_user)

    def bytes_of_user(self, user_id: int) -> int:
        """Return the bytes of the replies of one user's sessions."""
        return self._of_user.get(user_id, 0)

    def bytes_of_session(self, session_id: int) -> int:
        """Return the bytes of the replies of one session."""
        window = self._windows.get(session_id)
        return 0 if window is None else window.weight

    def worst_session(self) -> int | None:
        """Return the session with the most bytes, of the user with the most; None without
        replies."""
        if not self._of_user:
            return None
        user_id = max(self._of_user, key=lambda user: (self._of_user[user], -user))
        of_user = (item for item in self._windows.items() if item[1].user_id == user_id)
        return max((window.weight, -session_id) for session_id, window in of_user)[1] * -1

    def window(self, session_id: int) -> ReplyWindow | None:
        """Return the window of a session, for reading only."""
        return self._windows.get(session_id)

    def open(self, session_id: int, user_id: int) -> None:
        """Begin the window of a session whose registration is applied."""
        self._window_rows.note(session_id, ABSENT)
        self._windows[session_id] = ReplyWindow(user_id)

    def close(self, session_id: int) -> None:
        """Forget the window of a session whose end is applied."""
        window = self._windows[session_id]
        self._window_rows.note_gone(session_id, _row(session_id, window))
        for number in list(window.replies):
            self._forget(session_id, window, number)
        del self._windows[session_id]

    def acknowledge(self, session_id: int, acked: int) -> None:
        """Forget the replies up to `acked`, none beyond the last that was applied."""
        window = self._windows.get(session_id)
        if window is None:
            return
        acked = min(acked, window.last_applied)
        if acked <= window.acked:
            return
        self._note(session_id, window)
        for number in [number for number in window.replies if number <= acked]:
            self._forget(session_id, window, number)
        window.acked = acked

    def store(self, reply: RequestReply) -> None:
        """Keep the reply of a request that took effect, unless its session has ended."""
        session_id, number = reply.session_id, reply.number
        window = self._windows.get(session_id)
        if window is None:
            return
        assert number == window.last_applied + 1, (
            f"reply {number} of session {session_id} after {window.last_applied}"
        )
        self._note(session_id, window)
        self._reply_rows.note((session_id, number), ABSENT)
        window.last_applied = number
        window.replies[number] = reply
        self._count(window, weight(reply))

    def entities(self) -> Iterator[Entity]:
        """Return the present entities of windows and replies, in no order.

        Only references and numbers are copied at once, into flat lists: nothing is made or called
        per row before the caller iterates, because the loop waits meanwhile.
        """
        windows = self._windows.values()
        acked = [window.acked for window in windows]
        last_applied = [window.last_applied for window in windows]
        replies: list[RequestReply] = []
        for window in windows:
            replies.extend(window.replies.values())
        rows = map(WindowRow, list(self._windows), acked, last_applied)
        return encoded(chain(rows, replies), self._codec.encode_entity)

    def row_kinds(self) -> tuple[RowKind[None], ...]:
        """Return the kinds of rows, ascending."""
        encode = self._codec.encode_entity
        return (
            RowKind(WINDOW_KIND, lambda _: self._window_rows, encode, key_of),
            RowKind(REPLY_KIND, lambda _: self._reply_rows, encode, key_of),
        )

    def load(self, values: Iterable[SessionsValue]) -> None:
        """Load windows and replies, which `restoring` has checked, into an empty table."""
        users: dict[int, int] = {}
        for value in values:
            if isinstance(value, Session):
                users[value.session_id] = value.user_id
            elif isinstance(value, WindowRow):
                user_id = users[value.session_id]
                window = ReplyWindow(user_id, value.acked, value.last_applied)
                self._windows[value.session_id] = window
            elif isinstance(value, RequestReply):
                window = self._windows[value.session_id]
                window.replies[value.number] = value
                self._count(window, weight(value))

    def _count(self, window: ReplyWindow, change: int) -> None:
        """Update the sums that admission reads."""
        self._bytes += change
        window.weight += change
        left = self._of_user.get(window.user_id, 0) + change
        if left:
            self._of_user[window.user_id] = left
        else:
            del self._of_user[window.user_id]

    def _note(self, session_id: int, window: ReplyWindow) -> None:
        """Remember a window that is about to change."""
        changed = self._window_rows.changed
        if changed is not None and session_id not in changed:
            changed[session_id] = _row(session_id, window)

    def _forget(self, session_id: int, window: ReplyWindow, number: int) -> None:
        """Forget one reply."""
        reply = window.replies.pop(number)
        self._reply_rows.note_gone((session_id, number), reply)
        self._count(window, -weight(reply))

    def _window_row(self, session_id: int) -> WindowRow | None:
        """Return a window without its replies."""
        window = self._windows.get(session_id)
        return None if window is None else _row(session_id, window)

    def _reply_keys(self) -> Iterator[tuple[int, int]]:
        """Yield session id and number of each reply in arbitrary order."""
        for session_id, window in self._windows.items():
            for number in window.replies:
                yield session_id, number

    def _reply_row(self, key: tuple[int, int]) -> RequestReply | None:
        """Return a reply by session id and number."""
        window = self._windows.get(key[0])
        return None if window is None else window.replies.get(key[1])


def is_same(known: bytes, fingerprint: bytes) -> bool:
    """Return whether two requests under one number may be the same, by their fingerprints."""
    return not known or not fingerprint or known == fingerprint


def weight(reply: RequestReply) -> int:
    """Return the bytes that a kept reply counts as."""
    total = REPLY_OVERHEAD_BYTES
    for span in reply.spans:
        total += len(span.results)
        for error in span.errors:
            total += ERROR_OVERHEAD_BYTES + len(error.error)
    return total


def _row(session_id: int, window: ReplyWindow) -> WindowRow:
    """Return a window without its replies, as it is now."""
    return WindowRow(session_id, window.acked, window.last_applied)
