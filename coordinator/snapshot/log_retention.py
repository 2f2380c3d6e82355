"""How much covered journal is kept behind a snapshot for replicas that lag.

A replica that restarts, or is slow for a moment, then gets its missing entries from its peers and
needs no snapshot from them. The journal keeps covered log for a limited time and up to a limited
size, and keeps none on a full disk. Entries that one replica drops may still be at another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from viewstamp.limits import (
    PIPELINE_PREPARES_MAX,
    RETAIN_FOR_BACKUP_BYTES_MAX,
    RETAIN_FOR_BACKUP_MS,
)

LOOK_INTERVAL_MS: Final = 5_000


class TruncatableJournal(Protocol):
    """The journal as seen from here; called only in its own thread."""

    def bytes_from(self, op: int) -> int:
        """Return the bytes of the segments that hold an op at or above `op`."""
        ...

    def truncate_before(self, op: int) -> int:
        """Drop segments that hold no op at or above `op`; return how many."""
        ...


@dataclass(frozen=True, slots=True)
class Follower:
    """Another replica: the commit point of its last report, and the age of that."""

    committed_op: int
    silent_ms: int

    @property
    def needed_op(self) -> int:
        """The first op that it may ask for. A restart can set it back by a pipeline."""
        return max(1, self.committed_op - PIPELINE_PREPARES_MAX + 1)


@dataclass(frozen=True, slots=True)
class RetentionRoom:
    """How long, and for how many bytes of journal, covered log is retained for other replicas."""

    retain_ms: int = RETAIN_FOR_BACKUP_MS
    retain_bytes: int = RETAIN_FOR_BACKUP_BYTES_MAX


NONE_AT_ALL: Final = RetentionRoom(0, 0)


def keep_from(
    op: int, followers: Sequence[Follower], bytes_from: Callable[[int], int], room: RetentionRoom
) -> int:
    """Return the op from which on the journal is kept; a snapshot needs only `op` and later.

    Covered log is retained for the replica that lags most among those heard lately that do not need
    too much room; replicas that lag less then have what they need, too.
    """
    lately = [each for each in followers if each.silent_ms < room.retain_ms]
    for needed_op in sorted(each.needed_op for each in lately if each.needed_op < op):
        if bytes_from(needed_op) - bytes_from(op) <= room.retain_bytes:
            return needed_op
    return op


class LogRetention:
    """Truncates the journal of one replica; `run` later drops what was retained for others."""

    def __init__(
        self,
        journal: TruncatableJournal,
        followers: Callable[[], Sequence[Follower]],
        room: Callable[[], RetentionRoom],
    ) -> None:
        self._journal = journal
        self._followers = followers
        self._room = room
        self._op = 0
        self.is_kept = False

    def truncate_before(self, op: int) -> int:
        """Drop what neither the snapshot nor another replica needs; return how many segments.

        Call it in the journal's thread.
        """
        self._op = op
        return self.truncate()

    async def run(self, call: Callable[[Callable[[], int]], Awaitable[int]]) -> None:
        """Check from time to time, by `call` in the journal's thread, whether retained log can
        go."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_MS / 1000)
            if self.is_kept:
                await call(self.truncate)

    def truncate(self) -> int:
        """Drop what nobody needs by now, as far as the last call of `truncate_before` allowed."""
        keep_op = keep_from(self._op, self._followers(), self._journal.bytes_from, self._room())
        self.is_kept = keep_op < self._op
        return self._journal.truncate_before(keep_op)
