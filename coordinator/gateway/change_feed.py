"""The feed of one replica: what its domains changed lately, read once for all watches.

While somebody watches, one task reads the services again as soon as the log has gone on. Each
follower has an index into what was read, and is woken for the keys that it follows alone: its own
place, or all. So a change costs those who watch it, and nothing waits in a queue. What was read
is kept up to a few megabytes. A follower that falls further behind is told so, and reads the
services itself until it has caught up.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from coordinator.gateway.change_pages import (
    CalledOffError,
    ChangePages,
    ChangeReads,
    ChangesLostError,
    Revisions,
    followed_streams,
)
from coordinator.gateway.followed_keys import (
    EVERYTHING,
    FollowedKey,
    is_always_read,
    read_key,
    streams_in,
)
from coordinator.gateway.kept_changes import CHANGES_AT_ONCE, FeedChange, KeptChanges, Taken
from coordinator.mux import types as mux
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.errors import Refusal
from viewstamp.limits import (
    FEED_INTERVAL_MAX_MS,
    FEED_INTERVAL_MS,
    FEED_RETRY_MS,
    READ_DEADLINE_MS,
    WATCH_PROGRESS_MS,
)

# An index that is never kept.
_GONE: Final = -1


async def encoded(changes: Sequence[Change]) -> list[FeedChange]:
    """Return changes with their encodings."""
    found: list[FeedChange] = []
    for part in _parts(changes):
        found += map(FeedChange.of, part)
        await _let_others_go_on(part)
    return found


def _parts(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    for start in range(0, len(changes), CHANGES_AT_ONCE):
        yield changes[start : start + CHANGES_AT_ONCE]


async def _let_others_go_on(part: Sequence[Change]) -> None:
    """Give others the loop after a part that is not the only one."""
    if len(part) == CHANGES_AT_ONCE:
        await asyncio.sleep(0)


class FeedFollower:
    """One who follows some keys.

    What comes before the change `start`, or before everything if that is None, and behind
    `quiet_revision` did not concern it.
    """

    def __init__(self, feed: ChangeFeed, keys: Collection[FollowedKey]) -> None:
        self.keys = keys
        self.read_keys = tuple(dict.fromkeys(map(read_key, keys)))
        self.start: int | None = None
        self.quiet_revision = 0
        self._feed = feed
        self._woken = asyncio.Event()
        self._refusal: Refusal | None = None

    def follow_from(self, revision: int) -> bool:
        """Follow from a revision on; return whether the feed has all that concerns it since."""
        if not self._feed.has_all(self.read_keys, revision):
            return False
        self.start = None
        self.wake(self._feed.index_of(revision), revision - 1)
        return True

    def wake(self, index: int, quiet_revision: int) -> None:
        """Have it take the changes from an index on, unless it has to take earlier ones.

        None up to `quiet_revision` concern it but those.
        """
        if self.start is None:
            self.start, self.quiet_revision = index, quiet_revision
        self._woken.set()

    def end(self, refusal: Refusal) -> None:
        """Have it end with a refusal."""
        self._refusal = refusal
        self._woken.set()

    async def woken(self) -> None:
        """Wait until there may be something to take."""
        await self._woken.wait()

    @property
    def is_woken(self) -> bool:
        """Whether there may be something to take."""
        return self._woken.is_set()

    @property
    def due(self) -> int:
        """How many changes it has to take, about."""
        return 0 if self.start is None else self._feed.count(self.start, self.keys)

    def take(self) -> Taken | None:
        """Return what it has not taken, or the first part; None if some of it is not kept.

        After a part it stays woken for the rest. Raises the Refusal that ends it.
        """
        if self._refusal is not None:
            raise self._refusal
        start, self.start = self.start, None
        self._woken.clear()
        if start is None:
            return Taken((), self._feed.complete_revision, self._feed.end)
        taken = self._feed.since(start, self.keys)
        if taken is not None and taken.complete_revision < self._feed.complete_revision:
            self.wake(taken.next_index, taken.complete_revision)
        return taken


class ChangeFeed:
    """What was read lately, and those who follow it.

    `applied_revision` is how far this replica has come. `fail` is told of a defect.
    """

    def __init__(
        self,
        reads: ChangeReads,
        applied_revision: Callable[[], int],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.complete_revision = 0
        self.oldest_revision = 0
        self.view = self.op = 0
        self._reads = reads
        self._applied_revision = applied_revision
        self._fail = fail
        # Values are dictionaries, since sets have no order of their own.
        self._followers: dict[FollowedKey, dict[FeedFollower, None]] = defaultdict(dict)
        # What has to be read for them, and for how many of them.
        self._readers: Counter[FollowedKey] = Counter()
        self._count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._advanced = asyncio.Event()
        self._pages = ChangePages(reads, 1)
        # From which revision on what concerns a key is read, and keys of which nothing is read yet.
        # Access of all users always is.
        self._read_since: dict[FollowedKey, int] = {}
        self._unread: dict[FollowedKey, None] = {}
        self._has_other_keys = True  # than those of which the last page was
        self._widened = asyncio.Event()
        self._kept = KeptChanges()

    @property
    def followers(self) -> int:
        """How many follow it."""
        return self._count

    def add(self, keys: Collection[FollowedKey]) -> FeedFollower:
        """Begin to follow; the first follower has the feed begin behind what is applied."""
        if not self._count:
            self._begin()
        self._count += 1
        follower = FeedFollower(self, keys)
        for key in keys:
            self._followers[key][follower] = None
        for key in follower.read_keys:
            self._readers[key] += 1
            if not is_always_read(key) and key not in self._read_since:
                self._unread[key] = None
        self._read_more()
        return follower

    def remove(self, follower: FeedFollower) -> None:
        """Stop following; the last follower has the feed end."""
        for key in follower.keys:
            del self._followers[key][follower]
            if not self._followers[key]:
                del self._followers[key]
        for key in follower.read_keys:
            self._readers[key] -= 1
            if not self._readers[key]:
                del self._readers[key]
                self._forget(key)
        self._count -= 1
        if not self._count:
            for task in self._tasks:
                task.cancel()
            self._tasks.clear()

    async def reads_for(self, follower: FeedFollower) -> None:
        """Wait until what concerns a follower is read, from some revision on.

        That takes no longer than the page that is read at present.
        """
        while any(self._since(key) is None for key in follower.read_keys):
            self._widened.clear()
            await self._widened.wait()

    def has_all(self, read_keys: Collection[FollowedKey], first_revision: int) -> bool:
        """Return whether it has read all of this from a revision on."""
        oldest = [self.oldest_revision]
        for key in read_keys:
            since = self._since(key)
            if since is None:
                return False
            oldest.append(since)
        return first_revision >= max(oldest)

    def end_all(self, refusal: Refusal) -> None:
        """Have everybody who follows it end with a refusal."""
        for followers in list(self._followers.values()):
            for follower in followers:
                follower.end(refusal)

    def index_of(self, revision: int) -> int:
        """Return the index of the first change of a revision or of a later one."""
        return self._kept.index_of(revision)

    @property
    def end(self) -> int:
        """The index of the next change."""
        return self._kept.end

    def since(self, index: int, keys: Collection[FollowedKey]) -> Taken | None:
        """Return the first whole revisions of some keys from an index on; None if it is gone."""
        return self._kept.since(index, keys, self.complete_revision)

    def count(self, index: int, keys: Collection[FollowedKey]) -> int:
        """Return how many changes of some keys there are from an index on."""
        return self._kept.count(index, keys)

    def _begin(self) -> None:
        self._restart()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._confirm())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _restart(self) -> None:
        """Forget what was read, and begin behind what is applied."""
        self.complete_revision = self._applied_revision()
        self.oldest_revision = self.complete_revision + 1
        self._pages = ChangePages(self._reads, self.oldest_revision)
        self._has_other_keys = True
        self._kept.clear()
        self._advanced.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _since(self, key: FollowedKey) -> int | None:
        """Return the revision from which on what concerns a key is read; None if it is not yet."""
        if is_always_read(key):
            return self.oldest_revision
        everything = self._read_since.get(EVERYTHING)
        alone = self._read_since.get(key)
        if everything is None or alone is None:
            return everything if alone is None else alone
        return min(everything, alone)

    def _forget(self, key: FollowedKey) -> None:
        """Read no more what nobody follows."""
        if not is_always_read(key):
            self._read_since.pop(key, None)
            self._unread.pop(key, None)
            self._has_other_keys = True

    def _read_more(self) -> None:
        """Read what is followed and was not read yet: at once, unless a page is under way.

        A page that only waits for the log to go on is asked for again. One that has begun is not:
        callers who come one after the other would keep the feed from its work.
        """
        waits_for_log = self._pages.complete_revision >= self._applied_revision()
        if self._pages.is_idle or (self._unread and waits_for_log and self._pages.call_off()):
            self._widen()

    def _widen(self) -> None:
        """Have the next page be of all that is followed."""
        first = self._pages.unread_revision
        for key in self._unread:
            self._read_since[key] = first
            self._has_other_keys = True
        self._unread.clear()
        self._widened.set()

    def _followed(self) -> bytes | None:
        """Return what the next page has to be of."""
        if not self._has_other_keys:
            return self._pages.followed
        self._has_other_keys = False
        if EVERYTHING in self._readers:
            return None
        return followed_streams(streams_in(self._readers))

    async def _read(self) -> None:
        """Read for ever; services that do not answer are asked again."""
        quiet_ms = FEED_INTERVAL_MS
        while True:
            pause_ms = 0
            try:
                self._widen()
                self._pages.followed = self._followed()
                revisions = await self._pages.next(waits=True)
                await self._take(revisions)
                # Traffic that concerns nobody is looked at less and less often.
                quiet_ms = FEED_INTERVAL_MS if revisions.changes else 2 * quiet_ms
                quiet_ms = min(quiet_ms, FEED_INTERVAL_MAX_MS)
                pause_ms = 0 if revisions.is_cut_off else quiet_ms
            except CalledOffError:
                continue
            except ChangesLostError:
                quiet_revision = self.complete_revision
                self._restart()
                self._wake(list(self._followers), _GONE, quiet_revision)
            except Refusal:
                pause_ms = FEED_RETRY_MS
            await asyncio.sleep(pause_ms / 1000)

    async def _confirm(self) -> None:
        """Find out now and then that this replica is not cut off, or end all who follow it.

        Without this a replica that hears nobody would look like a cluster in which nothing happens.
        """
        while True:
            await asyncio.sleep(WATCH_PROGRESS_MS / 1000)
            try:
                async with asyncio.timeout(READ_DEADLINE_MS / 1000):
                    await self._come_to(await self._confirmed_revision())
            except TimeoutError:
                self.end_all(_cut_off())

    async def _confirmed_revision(self) -> int:
        """Return a revision that the cluster had when it was asked; during a view change, ask
        again."""
        while True:
            try:
                read = mux.Read(self._reads.next_token(), (), None, credential_revision=0)
                reply = await self._reads.start(read, linearizable=True, revision=0)
            except Refusal:
                await asyncio.sleep(FEED_RETRY_MS / 1000)
            else:
                return reply.first_revision

    async def _come_to(self, revision: int) -> None:
        while self.complete_revision < revision:
            self._advanced.clear()
            await self._advanced.wait()

    async def _take(self, revisions: Revisions) -> None:
        """Keep what was read, and wake whom it concerns, once all of it is there."""
        start, quiet_revision = self._kept.end, self.complete_revision
        keys: dict[FollowedKey, None] = {}
        for part in _parts(revisions.changes):
            added = self._kept.add([*map(FeedChange.of, part)])
            keys.update(dict.fromkeys(added))
            await _let_others_go_on(part)
        self._kept.show()
        self.complete_revision = revisions.complete_revision
        self.view, self.op = revisions.view, revisions.op
        self._advanced.set()
        if revisions.changes:
            self._wake([EVERYTHING, *keys], start, quiet_revision)
        await self._shrink()

    async def _shrink(self) -> None:
        """Forget what there is no room for; between two parts others have the loop."""
        while (gone := self._kept.shrink()) is not None:
            self.oldest_revision = gone + 1
            await asyncio.sleep(0)

    def _wake(self, keys: Sequence[FollowedKey], start: int, quiet_revision: int) -> None:
        for key in keys:
            for follower in self._followers.get(key, ()):
                follower.wake(start, quiet_revision)


def _cut_off() -> Refusal:
    return Refusal(
        Reason.REASON_NO_QUORUM,
        f"this replica could not confirm within {READ_DEADLINE_MS} ms that its feed is complete:"
        " watch at another one, from where this one ended",
    )
