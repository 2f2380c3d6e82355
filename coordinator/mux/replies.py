"""The replies that clients have not acknowledged, byte for byte. Changed when a prepare is applied
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from coordinator.mux.catalog_types import Entity
from coordinator.mux.codec import Codec
from coordinator.mux.entities import (
    REPLY_KIND,
    WINDOW_KIND,
    Session,
    SessionsValue,
    WindowRow,
    encoded,
    number_key,
    reply_key,
)
from coordinator.mux.freezing import ChangeLog, RowKind
from coordinator.mux.types import RequestReply

# What a kept reply weighs beside its bytes: objects and dictionary slots, roughly.
REPLY_OVERHEAD_BYTES: Final = 256
# And each refusal in it: an object, its bytes, a place in the tuple.
ERROR_OVERHEAD_BYTES: Final = 128


@dataclass(slots=True)
class ReplyWindow:
    """What is kept for one session: replies by number, those above `acked` alone.

    `user_id` and `weight` are for admission and no part of the state.
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
        # What changed since the last cut; replies by session id and number.
        self._window_log: ChangeLog[int, WindowRow] = ChangeLog()
        self._reply_log: ChangeLog[tuple[int, int], RequestReply] = ChangeLog()

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
        """Return the session with the most bytes, of the user who has the most; None: none has."""
        if not self._of_user:
            return None
        user_id = max(self._of_user, key=lambda user: (self._of_user[user], -user))
        of_user = (item for item in self._windows.items() if item[1].user_id == user_id)
        return max((window.weight, -session_id) for session_id, window in of_user)[1] * -1

    def window(self, session_id: int) -> ReplyWindow | None:
        """Return the window of a session, to be read alone."""
        return self._windows.get(session_id)

    def open(self, session_id: int, user_id: int) -> None:
        """Begin the window of a session whose registration is applied."""
        self._window_log.note(session_id, None)
        self._windows[session_id] = ReplyWindow(user_id)

    def close(self, session_id: int) -> None:
        """Forget the window of a session whose end is applied."""
        window = self._windows[session_id]
        self._window_log.note_drop(session_id, _row(session_id, window))
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
        self._reply_log.first.setdefault((session_id, number), None)
        window.last_applied = number
        window.replies[number] = reply
        self._count(window, weight(reply))

    def entities(self) -> Iterator[Entity]:
        """Return every entity of windows and replies as it is now, in no order.

        What is copied for it, at once, are references and numbers in flat lists: nothing is made
        or called for each row before somebody iterates, since the loop waits meanwhile.
        """
        windows = self._windows.values()
        acked = [window.acked for window in windows]
        last_applied = [window.last_applied for window in windows]
        replies: list[RequestReply] = []
        for window in windows:
            replies.extend(window.replies.values())
        rows = map(WindowRow, list(self._windows), acked, last_applied)
        return encoded(chain(rows, replies), self._codec.encode_entity)

    def row_kinds(self) -> tuple[RowKind[Any, Any], ...]:
        """Return the kinds of rows, ascending."""
        windows, replies, encode = self._window_log, self._reply_log, self._codec.encode_entity
        return (
            RowKind(WINDOW_KIND, windows, self._windows.keys, self._window_row, number_key, encode),
            RowKind(REPLY_KIND, replies, self._reply_keys, self._reply_row, reply_key, encode),
        )

    def load(self, values: Iterable[SessionsValue]) -> None:
        """Take over windows and replies, which `restoring` has checked, when there are none."""
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
        """Keep the sums that admission looks at."""
        self._bytes += change
        window.weight += change
        left = self._of_user.get(window.user_id, 0) + change
        if left:
            self._of_user[window.user_id] = left
        else:
            del self._of_user[window.user_id]

    def _note(self, session_id: int, window: ReplyWindow) -> None:
        """Remember a window that is about to change."""
        if session_id not in self._window_log.first:
            self._window_log.first[session_id] = _row(session_id, window)

    def _forget(self, session_id: int, window: ReplyWindow, number: int) -> None:
        """Forget one reply."""
        reply = window.replies.pop(number)
        self._reply_log.note_drop((session_id, number), reply)
        self._count(window, -weight(reply))

    def _window_row(self, session_id: int) -> WindowRow | None:
        """Return a window without its replies."""
        window = self._windows.get(session_id)
        return None if window is None else _row(session_id, window)

    def _reply_keys(self) -> Iterator[tuple[int, int]]:
        """Yield session id and number of each reply, in no order that means anything."""
        for session_id, window in self._windows.items():
            for number in window.replies:
                yield session_id, number

    def _reply_row(self, key: tuple[int, int]) -> RequestReply | None:
        """Return a reply by session id and number."""
        window = self._windows.get(key[0])
        return None if window is None else window.replies.get(key[1])


def is_same(known: bytes, fingerprint: bytes) -> bool:
    """Whether two requests under one number may be the same one, by their fingerprints."""
    return not known or not fingerprint or known == fingerprint


def weight(reply: RequestReply) -> int:
    """Return the bytes that a kept reply counts for."""
    total = REPLY_OVERHEAD_BYTES
    for span in reply.spans:
        total += len(span.results)
        for error in span.errors:
            total += ERROR_OVERHEAD_BYTES + len(error.error)
    return total


def _row(session_id: int, window: ReplyWindow) -> WindowRow:
    """Return a window without its replies, as it is now."""
    return WindowRow(session_id, window.acked, window.last_applied)
