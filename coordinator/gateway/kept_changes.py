"""What a feed keeps: the newest changes up to some bytes, found by what they concern.

A follower of one place finds the changes in it without a look at any other. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from coordinator.gateway.followed_keys import EVERYTHING, FollowedKey, keys_of_change
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.limits import FEED_BYTES_MAX

# Memory of a change beside its encoding, roughly: the message, and its places in the index.
CHANGE_OVERHEAD_BYTES: Final = 1_024
# So many changes are given out together, and worked through before others have the loop.
CHANGES_AT_ONCE: Final = 1_024


@dataclass(frozen=True, slots=True)
class FeedChange:
    """A change, encoded once for all who watch it."""

    change: Change
    encoded: bytes

    @classmethod
    def of(cls, change: Change) -> FeedChange:
        """Encode a change."""
        return cls(change, change.SerializeToString())

    @property
    def is_access(self) -> bool:
        """Whether it says that what a user may do has changed, and is for no watcher."""
        return not self.change.entity_type

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, roughly."""
        return len(self.encoded) + CHANGE_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Taken:
    """Whole revisions: every change up to `complete_revision` that concerns a follower.

    What it has to take after them begins at `next_index`. Followers of one place share `changes`.
    """

    changes: Sequence[FeedChange]
    complete_revision: int
    next_index: int


class _Run(NamedTuple):
    """The indexes of changes of a key, from the place `first` to before `last`."""

    key: FollowedKey
    indexes: Sequence[int]
    first: int
    last: int

    def next(self, count: int) -> Sequence[int]:
        """Return the first ones."""
        return self.indexes[self.first : min(self.first + count, self.last)]


class KeptChanges:
    """Changes in the order of the log. Indexes count all that ever came; the oldest are gone.

    Many changes come and go in parts, so that whoever does it can let others go on meanwhile.
    """

    def __init__(self) -> None:
        self._changes: list[FeedChange] = []
        self._revisions: list[int] = []
        self._first = 0
        self._end = 0
        self._bytes = 0
        self._gone_revision = 0  # the newest of which something is gone
        self._indexes: dict[FollowedKey, list[int]] = {}
        # What was taken of a revision that is long, by its first index, for who follows the same.
        self._shared: dict[tuple[int, FollowedKey], tuple[FeedChange, ...]] = {}

    @property
    def end(self) -> int:
        """The index of the next change that is shown."""
        return self._end

    def index_of(self, revision: int) -> int:
        """Return the index of the first change of a revision or of a later one."""
        shown = self._end - self._first
        return self._first + bisect_left(self._revisions, revision, hi=shown)

    def add(self, changes: Sequence[FeedChange]) -> list[FollowedKey]:
        """Append changes, a part of whole later revisions; return what they concern, each key once.

        Nobody finds them before `show`.
        """
        keys: dict[FollowedKey, None] = {}
        for index, each in enumerate(changes, self._first + len(self._changes)):
            for key in keys_of_change(each.change):
                keys[key] = None
                if (indexes := self._indexes.get(key)) is None:
                    self._indexes[key] = [index]
                else:
                    indexes.append(index)
            self._bytes += each.size_bytes
        self._changes += changes
        self._revisions += [each.change.revision for each in changes]
        return list(keys)

    def show(self) -> None:
        """Have everything found that was added."""
        self._end = self._first + len(self._changes)

    def clear(self) -> None:
        """Forget all; every index from before is gone, also that of the next change."""
        self._first += len(self._changes) + 1
        self._end = self._first
        self._bytes = 0
        for kept in (self._changes, self._revisions, self._indexes, self._shared):
            kept.clear()

    def shrink(self) -> int | None:
        """Forget the oldest revisions beyond the limit, all but the last one, a part at once.

        Return the newest one of which something is gone now, or None if there was nothing to
        forget: call it until then.
        """
        gone = 0
        while gone < CHANGES_AT_ONCE and self._has_to_go(gone):
            self._gone_revision = self._revisions[gone]
            self._bytes -= self._changes[gone].size_bytes
            gone += 1
        self._forget(gone)
        return self._gone_revision if gone else None

    def _has_to_go(self, position: int) -> bool:
        """Return whether a change is too much, or of a revision of which others are gone."""
        if position >= len(self._revisions):
            return False
        revision = self._revisions[position]
        is_too_much = self._bytes > FEED_BYTES_MAX and revision != self._revisions[-1]
        return is_too_much or revision == self._gone_revision

    def _forget(self, count: int) -> None:
        gone = [keys_of_change(each.change) for each in self._changes[:count]]
        self._first += count
        del self._changes[:count], self._revisions[:count]
        for key in dict.fromkeys(key for keys in gone for key in keys):
            indexes = self._indexes[key]
            del indexes[: bisect_left(indexes, self._first)]
            if not indexes:
                del self._indexes[key]
        for shared in [each for each in self._shared if each[0] < self._first]:
            del self._shared[shared]

    def count(self, index: int, keys: Collection[FollowedKey]) -> int:
        """Return how many changes of some keys there are from an index on."""
        return sum(each.last - each.first for each in self._runs(keys, index, self._end))

    def since(
        self, index: int, keys: Collection[FollowedKey], complete_revision: int
    ) -> Taken | None:
        """Return the first whole revisions of some keys from an index on; None if it is gone.

        They are as many as have no more than CHANGES_AT_ONCE changes together, or one that has
        more. `index` is that of the first change of a revision; all changes up to
        `complete_revision` are here, or were.
        """
        if index < self._first:
            return None
        nearest = self._nearest(keys, index)
        if len(nearest) <= CHANGES_AT_ONCE:
            return Taken(self._at(nearest), complete_revision, self._end)
        revision = self._revision(nearest[-1])
        if revision == self._revision(nearest[0]):
            end = self.index_of(revision + 1)
            return Taken(self._long(keys, nearest[0], end), revision, end)
        end = self.index_of(revision)
        return Taken(self._at(nearest[: bisect_left(nearest, end)]), revision - 1, end)

    def _nearest(self, keys: Collection[FollowedKey], start: int) -> list[int]:
        """Return the next indexes of what concerns some keys: up to one more than fits.

        No change has two of the keys.
        """
        count = CHANGES_AT_ONCE + 1
        runs = self._runs(keys, start, self._end)
        return sorted(index for run in runs for index in run.next(count))[:count]

    def _long(self, keys: Collection[FollowedKey], start: int, end: int) -> Sequence[FeedChange]:
        """Return the changes of a long revision. Those who follow one key in it share them."""
        runs = list(self._runs(keys, start, end))
        if len(runs) > 1:
            return self._at(sorted(index for run in runs for index in run.next(end - start)))
        shared = start, runs[0].key
        if shared not in self._shared:
            self._shared[shared] = self._at(runs[0].next(end - start))
        return self._shared[shared]

    def _runs(self, keys: Collection[FollowedKey], start: int, end: int) -> Iterator[_Run]:
        """Yield what each key has between two indexes, without keys that have nothing there."""
        for key in keys:
            indexes: Sequence[int] = self._indexes.get(key, ())
            if key == EVERYTHING:
                indexes = range(self._first, self._end)
            first = bisect_left(indexes, start)
            last = bisect_left(indexes, end, lo=first)
            if first < last:
                yield _Run(key, indexes, first, last)

    def _at(self, indexes: Iterable[int]) -> tuple[FeedChange, ...]:
        return tuple([self._changes[each - self._first] for each in indexes])

    def _revision(self, index: int) -> int:
        return self._revisions[index - self._first]
