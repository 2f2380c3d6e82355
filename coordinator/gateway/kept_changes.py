"""What a feed keeps: the newest changes up to some bytes, found by what they concern.

A follower of one place finds the changes in it without a look at any other. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.gateway.followed_keys import EVERYTHING, FollowedKey, keys_of_change
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.limits import FEED_BYTES_MAX

# Memory of a change beside its encoding, roughly.
_CHANGE_OVERHEAD_BYTES: Final = 512
# So many changes are given out together, and worked through before others have the loop.
CHANGES_AT_ONCE: Final = 1_024


@dataclass(frozen=True, slots=True)
class FeedChange:
    """A change, encoded once for all who watch it, and what it concerns."""

    change: Change
    encoded: bytes
    keys: tuple[FollowedKey, ...]

    @classmethod
    def of(cls, change: Change) -> FeedChange:
        """Encode a change."""
        return cls(change, change.SerializeToString(), keys_of_change(change))

    @property
    def is_access(self) -> bool:
        """Whether it says that what a user may do has changed, and is for no watcher."""
        return not self.change.entity_type

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, roughly."""
        return len(self.encoded) + _CHANGE_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Taken:
    """Whole revisions: every change up to `complete_revision` that concerns a follower.

    What it has to take after them begins at `next_index`.
    """

    changes: Sequence[FeedChange]
    complete_revision: int
    next_index: int


class KeptChanges:
    """Changes in the order of the log. Indexes count all that ever came; the oldest are gone."""

    def __init__(self) -> None:
        self._changes: list[FeedChange] = []
        self._revisions: list[int] = []
        self._first = 0
        self._bytes = 0
        self._indexes: dict[FollowedKey, list[int]] = {}

    @property
    def end(self) -> int:
        """The index of the next change."""
        return self._first + len(self._changes)

    def index_of(self, revision: int) -> int:
        """Return the index of the first change of a revision or of a later one."""
        return self._first + bisect_left(self._revisions, revision)

    def add(self, changes: Sequence[FeedChange]) -> list[FollowedKey]:
        """Append changes of later revisions; return what they concern, each key once."""
        keys: dict[FollowedKey, None] = {}
        for index, each in enumerate(changes, self.end):
            for key in each.keys:
                keys[key] = None
                self._indexes.setdefault(key, []).append(index)
            self._bytes += each.size_bytes
        self._changes += changes
        self._revisions += [each.change.revision for each in changes]
        return list(keys)

    def clear(self) -> None:
        """Forget all; every index from before is gone, also that of the next change."""
        self._first = self.end + 1
        self._bytes = 0
        for kept in (self._changes, self._revisions, self._indexes):
            kept.clear()

    def shrink(self) -> int | None:
        """Forget the oldest revisions beyond the limit, all but the last one.

        Return the newest of those that are gone, or None if there is room for all.
        """
        gone, revision = 0, None
        while self._bytes > FEED_BYTES_MAX and self._revisions[gone] != self._revisions[-1]:
            revision = self._revisions[gone]
            while self._revisions[gone] == revision:
                self._bytes -= self._changes[gone].size_bytes
                gone += 1
        self._forget(gone)
        return revision

    def _forget(self, count: int) -> None:
        keys = dict.fromkeys(key for each in self._changes[:count] for key in each.keys)
        self._first += count
        del self._changes[:count], self._revisions[:count]
        for key in keys:
            indexes = self._indexes[key]
            del indexes[: bisect_left(indexes, self._first)]
            if not indexes:
                del self._indexes[key]

    def since(
        self, index: int, keys: Collection[FollowedKey], complete_revision: int
    ) -> Taken | None:
        """Return the first whole revisions of some keys from an index on; None if it is gone.

        All changes up to `complete_revision` are here, or were.
        """
        if index < self._first:
            return None
        found = self._found(index, keys)
        end = self._end_of_revision(found, CHANGES_AT_ONCE)
        changes = [self._changes[each - self._first] for each in found[:end]]
        if end == len(found):
            return Taken(changes, complete_revision, self.end)
        return Taken(changes, self._revision(found[end]) - 1, found[end])

    def _found(self, index: int, keys: Collection[FollowedKey]) -> Sequence[int]:
        """Return the indexes of what concerns some keys, in order; no change has two of them."""
        if EVERYTHING in keys:
            return range(index, self.end)
        parts = [self._indexes[key] for key in keys if key in self._indexes]
        return sorted(each for part in parts for each in part[bisect_left(part, index) :])

    def _end_of_revision(self, found: Sequence[int], count: int) -> int:
        """Return how many of these are whole revisions: at least `count`, if there are so many."""
        if len(found) <= count:
            return len(found)
        last = self._revision(found[count - 1])
        while count < len(found) and self._revision(found[count]) == last:
            count += 1
        return count

    def _revision(self, index: int) -> int:
        return self._revisions[index - self._first]
