"""Notices: streams are told that places of their sessions have changed, some at a time.

A change of a large group concerns thousands of members. Each shows life when it is told, so they
are told in an even stream, and each once, however much has changed meanwhile. A notice is a hint:
one that gets lost costs its member the time to its next sign of life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Protocol

from viewstamp.api.domain.v1.domain_service_pb2 import Notice
from viewstamp.limits import NOTICE_INTERVAL_MS, NOTICES_TOGETHER_MAX


class NoticedStreams(Protocol):
    """The streams as seen from here."""

    def takes_notices(self, session_id: int) -> bool:
        """Return whether a session has an open stream that takes them."""
        ...

    def notice(self, session_id: int, group_ids: Collection[int]) -> None:
        """Tell the stream of a session, if there is one, of these groups."""
        ...


class MemberNotices:
    """Whom to tell next, and of what."""

    def __init__(self, streams: NoticedStreams) -> None:
        self._streams = streams
        self._due: dict[int, set[int]] = {}  # groups by session, oldest first

    def __len__(self) -> int:
        """Return how many streams are still to be told."""
        return len(self._due)

    def add(self, notices: Iterable[Notice]) -> None:
        """Have the streams told that are open here."""
        is_telling = bool(self._due)
        for notice in notices:
            if self._streams.takes_notices(notice.session_id):
                self._due.setdefault(notice.session_id, set()).add(notice.group_id)
        if self._due and not is_telling:
            self._tell_soon()

    def _tell_soon(self) -> None:
        asyncio.get_running_loop().call_later(NOTICE_INTERVAL_MS / 1000, self._tell)

    def _tell(self) -> None:
        for session_id in list(islice(self._due, NOTICES_TOGETHER_MAX)):
            self._streams.notice(session_id, self._due.pop(session_id))
        if self._due:
            self._tell_soon()
