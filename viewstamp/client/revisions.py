"""Joins the messages of a watch into whole revisions. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client.errors import ProtocolError, RevisionTooLarge
from viewstamp.limits import MIB

# Encoded changes of one revision that may wait for the rest of it. A service keeps as much for all
# watches together.
INCOMPLETE_REVISION_BYTES_MAX: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class WatchedRevision:
    """What one command, or one transaction, changed of what is watched: at least one change."""

    revision: int
    changes: tuple[watch_pb2.Change, ...]


class RevisionJoin:
    """Keeps the parts of a revision until a header says that it is complete.

    `complete_revision` is the last revision of which everything has come; None before the first
    header of a watch that begins at the next revision.
    """

    def __init__(self, complete_revision: int | None) -> None:
        self.complete_revision = complete_revision
        self._parts: list[watch_pb2.Change] = []
        self._bytes = 0

    def begin(self, header_revision: int) -> None:
        """Take the first header of a call; parts from before come again. Raises ProtocolError."""
        self.forget_parts()
        if self.complete_revision not in (None, header_revision):
            raise ProtocolError(
                f"the feed begins behind revision {header_revision}, and revision"
                f" {self.complete_revision} was the last one before: changes would be lost"
            )
        self.complete_revision = header_revision

    def take(self, response: watch_pb2.WatchResponse) -> list[WatchedRevision]:
        """Return the revisions that a message completes, in order.

        Raises ProtocolError for a message out of order, RevisionTooLarge.
        """
        complete = response.header.revision
        if complete < self._complete:
            raise ProtocolError(f"the feed went back from {self._complete} to {complete}")
        for change in response.changes:
            self._add(change)
        count = bisect_right(self._parts, complete, key=_revision_of)
        whole = self._parts[:count]
        self._check_size(whole)
        self.complete_revision = complete
        del self._parts[:count]
        return [
            WatchedRevision(revision, tuple(changes))
            for revision, changes in groupby(whole, _revision_of)
        ]

    def skip_to(self, revision: int) -> None:
        """Note that everything up to a revision has come, without a header that says so."""
        self.complete_revision = max(self._complete, revision)
        self.forget_parts()

    def forget_parts(self) -> None:
        """Forget a revision that is not complete, because the call that sent it has ended."""
        self._parts.clear()
        self._bytes = 0

    @property
    def _complete(self) -> int:
        assert self.complete_revision is not None, "the first header has not come"
        return self.complete_revision

    def _add(self, change: watch_pb2.Change) -> None:
        least = self._parts[-1].revision if self._parts else self._complete + 1
        if change.revision < least:
            raise ProtocolError(
                f"a change of revision {change.revision} came where {least} or later was due"
            )
        self._parts.append(change)
        self._bytes += change.ByteSize()

    def _check_size(self, whole: Sequence[watch_pb2.Change]) -> None:
        self._bytes -= sum(change.ByteSize() for change in whole)
        if self._bytes > INCOMPLETE_REVISION_BYTES_MAX:
            raise RevisionTooLarge(_too_large(self._parts))


def _revision_of(change: watch_pb2.Change) -> int:
    return change.revision


def _too_large(parts: Sequence[watch_pb2.Change]) -> str:
    return (
        f"{len(parts)} changes of revision {parts[-1].revision} came and more follow: a watch keeps"
        f" {INCOMPLETE_REVISION_BYTES_MAX} bytes of a revision; watch fewer types, or list again"
        " and watch from the revision of the list"
    )
