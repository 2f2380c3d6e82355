"""The open Submit streams of each user, and which of them end with the user's credentials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal


class Credentialed(Protocol):
    """A stream that was opened with credentials."""

    def check_credentials(self) -> None:
        """End the stream if the credentials that it was opened with have ended."""


class StreamPlaces:
    """The places of all users at this replica."""

    def __init__(self) -> None:
        self._of_user: Counter[int] = Counter()
        self._served: dict[int, set[Credentialed]] = {}

    @contextmanager
    def place(self, user_id: int) -> Iterator[None]:
        """Take a place of the user's. Raises Refusal QUOTA_EXCEEDED."""
        open_count = self._of_user[user_id]
        if open_count >= limits.SUBMIT_STREAMS_PER_USER_MAX:
            raise _too_many(f"user {user_id} has", open_count)
        if self._of_user.total() >= limits.SUBMIT_STREAMS_MAX:
            raise _too_many("this replica has", self._of_user.total())
        self._of_user[user_id] += 1
        try:
            yield
        finally:
            self._of_user[user_id] -= 1
            if not self._of_user[user_id]:
                del self._of_user[user_id]

    @contextmanager
    def serving(self, user_id: int, stream: Credentialed) -> Iterator[None]:
        """Have a stream, with a session or without, end when its user's credentials do."""
        streams = self._served.setdefault(user_id, set())
        streams.add(stream)
        try:
            yield
        finally:
            streams.remove(stream)
            if not streams:
                del self._served[user_id]

    def check_credentials(self, user_id: int) -> None:
        """End the streams of the user that were opened with ended credentials."""
        for stream in self._served.get(user_id, ()):
            stream.check_credentials()


def _too_many(who: str, count: int) -> Refusal:
    return Refusal(
        Reason.REASON_QUOTA_EXCEEDED,
        f"{who} {count} Submit streams open, which is the maximum: end some",
        share="submit_streams",
        held=count,
        retry_delay_ms=limits.REPLIES_RETRY_DELAY_MS,
    )
