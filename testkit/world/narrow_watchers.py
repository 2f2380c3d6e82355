"""The processes of a run that watch a part of the changes, as users who may see only so much.

Each watches a place (`testkit.world.watched_places`): its stream, its topic, its group, some types,
or some domains; from the next revision, from where it was, or from long ago; and now and then it
reads slowly. Feeds are short, so that watchers fall behind them. What a watcher is refused is
judged at once, and what it is shown in the end (`testkit.world.narrow_feeds`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from coordinator.gateway import change_feed, change_pages, kept_changes, watch_turns, watches
from services.runtime import changes
from testkit.load.watcher import TRY_AGAIN
from testkit.oracles.feeds import Shown, ShownFeed
from testkit.world.narrow_feeds import NarrowLife, WatchedPart, narrow_violations
from testkit.world.process import telling
from testkit.world.wanderers import PASSWORD
from testkit.world.watched_places import CONNECT_PATIENCE_S, Keeper, WatchedPlace
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.client import Client, connect
from viewstamp.client.errors import CannotConnect, TimedOut
from viewstamp.errors import Refusal

if TYPE_CHECKING:
    from testkit.world.clients import Access
    from testkit.world.process import WorldProcess
    from testkit.world.world import World
    from viewstamp.client.watching import Watch

_PAUSE_S: Final = 0.1
_LOOK_AGAIN_S: Final = 0.05
# A watcher is shown so many revisions, or lives for so long, and then ends.
_LIFE_REVISIONS: Final = (3, 60)
_LIFE_S: Final = (0.5, 4.0)
# How long it works at what it was shown.
_WORK_S: Final = (0.0, 0.0, 0.01, 0.6)
_LONG_AGO: Final = (5, 60)
# Its user is refused these while a part of the place, or of what the user may do, is missing.
_OF_REMOVALS: Final = frozenset(
    {
        Reason.REASON_STREAM_NOT_FOUND,
        Reason.REASON_TOPIC_NOT_FOUND,
        Reason.REASON_GROUP_NOT_FOUND,
        Reason.REASON_PERMISSION_DENIED,
        Reason.REASON_UNAUTHENTICATED,
        Reason.REASON_INVALID_CREDENTIALS,
    }
)
_TOPIC: Final = streams_pb2.Topic.DESCRIPTOR.full_name
_GROUP: Final = consumer_groups_pb2.ConsumerGroup.DESCRIPTOR.full_name
_USER: Final = users_pb2.User.DESCRIPTOR.full_name
_STREAMS: Final = int(routing_pb2.STAGE_STREAMS)
_GROUPS: Final = int(routing_pb2.STAGE_CONSUMER_GROUPS)
_USERS: Final = int(routing_pb2.STAGE_USERS)
# Types and domains that are asked for in any place.
_KINDS: Final = (
    WatchedPart(),
    WatchedPart(entity_types=(_TOPIC,)),
    WatchedPart(entity_types=(_TOPIC, _GROUP)),
    WatchedPart(domains=(_STREAMS, _GROUPS)),
)
_USERS_ALONE: Final = (
    WatchedPart(entity_types=(_USER,)),
    WatchedPart(domains=(_USERS,)),
    WatchedPart(domains=(_USERS, _GROUPS), entity_types=(_USER, _GROUP)),
)
# A place of a few names never fills the product's feeds, and a run has no time for its pauses.
_CHANGES_AT_ONCE: Final = 4
_PROGRESS_MS: Final = 500
_CONFIRMED_MS: Final = 1_000
_PAGE_CHANGES: Final = 8
_FEED_BYTES: Final = 8_000
_MESSAGE_BYTES: Final = 200
_KEPT_BYTES: Final = 50_000
_SHORT: Final = (
    (change_feed, "CHANGES_AT_ONCE", _CHANGES_AT_ONCE),
    (kept_changes, "CHANGES_AT_ONCE", _CHANGES_AT_ONCE),
    (watch_turns, "CHANGES_AT_ONCE", _CHANGES_AT_ONCE),
    (watch_turns, "WATCH_COST_CHANGES", 1),
    (watches, "CHANGES_AT_ONCE", _CHANGES_AT_ONCE),
    (change_feed, "WATCH_PROGRESS_MS", _PROGRESS_MS),
    (watches, "WATCH_PROGRESS_MS", _PROGRESS_MS),
    (change_feed, "READ_DEADLINE_MS", _CONFIRMED_MS),
    (change_pages, "CHANGES_PAGE_MAX", _PAGE_CHANGES),
    (changes, "CHANGES_PAGE_MAX", _PAGE_CHANGES),
    (kept_changes, "FEED_BYTES_MAX", _FEED_BYTES),
    (watches, "WATCH_MESSAGE_BYTES_MAX", _MESSAGE_BYTES),
    (changes.RecentChanges.__init__, "__defaults__", (_KEPT_BYTES,)),
)


@contextmanager
def short_feeds() -> Iterator[None]:
    """Have replicas and services keep so few changes that watchers fall behind them."""
    with ExitStack() as stack:
        for owner, name, value in _SHORT:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


class NarrowWatcher:
    """Watches parts of a place, in one life after another, until told to end.

    `failed` is told of a refusal that nothing explains.
    """

    def __init__(
        self,
        place: WatchedPlace,
        keeper: Keeper,
        seed: int,
        access: Access,
        lives: list[NarrowLife],
        failed: Callable[[str], None],
        marks: Counter[str],
    ) -> None:
        self._place = place
        self._keeper = keeper
        self._random = Random(seed)
        self._access = access
        self._lives = lives
        self._failed = failed
        self._marks = marks
        self._last = 0
        """The last revision up to which it was shown everything."""

    async def run(self) -> None:
        """Watch, beside the keeper. Raises what neither is ever told."""
        await asyncio.gather(self._keeper.run(), self._watch())

    async def _watch(self) -> None:
        while not self._has_ended:
            if any(self._place.ids):
                await self._try_to_live()
            await asyncio.sleep(_PAUSE_S)

    @property
    def _has_ended(self) -> bool:
        return self._keeper.is_done and self._last >= self._place.last_revision

    # --- A life ---

    async def _try_to_live(self) -> None:
        place = self._place
        was_whole, removals = place.is_whole, place.removals
        part, is_within = self._chosen()
        try:
            await self._live(part, is_within)
        except Refusal as refusal:
            is_explained = not (was_whole and removals == place.removals)
            self._marks[f"narrow watchers: {refusal.name}"] += 1
            self._judge(refusal, is_explained, is_within)
        except (CannotConnect, TimedOut):
            pass  # as long as there are faults

    def _chosen(self) -> tuple[WatchedPart, bool]:
        """Return what is watched next, and whether that is within the place."""
        if self._random.randrange(4) == 0:
            return self._random.choice((*_KINDS, *_USERS_ALONE)), False
        kind, depth = self._random.choice(_KINDS), self._random.randint(1, 3)
        ids = [id_ if number < depth else 0 for number, id_ in enumerate(self._place.ids)]
        return WatchedPart(kind.entity_types, kind.domains, *ids), True

    async def _live(self, part: WatchedPart, is_within: bool) -> None:
        async with await self._connected() as client, self._opened(client, part) as watch:
            if self._place.is_scoped and not is_within:
                self._failed(f"watcher {self._place.name} may watch everything")
            shown = Shown(watch.revision, only_topics=False, complete=watch.revision)
            self._lives.append(NarrowLife(self._place.name, part, shown))
            self._last = watch.revision
            taking = asyncio.create_task(self._take(watch, shown))
            end_s = asyncio.get_running_loop().time() + self._random.uniform(*_LIFE_S)
            while not (taking.done() or self._has_ended):
                await asyncio.wait({taking}, timeout=_LOOK_AGAIN_S)
                if asyncio.get_running_loop().time() >= end_s and not self._keeper.is_ending:
                    break
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        if not taking.cancelled():
            taking.result()

    async def _connected(self) -> Client:
        addresses = list(self._access.addresses)
        self._random.shuffle(addresses)
        place, patience_s = self._place, CONNECT_PATIENCE_S
        uses_token = bool(place.token) and self._random.randrange(2) == 0
        return await connect(
            addresses,
            username=None if uses_token else place.name,
            password=None if uses_token else PASSWORD,
            personal_access_token=place.token if uses_token else None,
            connect_timeout_s=patience_s,
            timeout_s=patience_s,
            register_session=False,
        )

    def _opened(self, client: Client, part: WatchedPart) -> Watch:
        domains: Any = part.domains
        return client.watch(
            from_revision=self._chosen_revision(),
            stream=part.stream_id or None,
            topic=part.topic_id or None,
            group=part.group_id or None,
            domains=domains,
            entity_types=part.entity_types,
        )

    def _chosen_revision(self) -> int:
        """Return the next revision of its own, mostly; or the cluster's, or one of long ago."""
        if self._random.randrange(3) or self._keeper.is_ending:
            return self._last + 1 if self._last else 0
        past = max(1, self._place.last_revision - self._random.randint(*_LONG_AGO))
        return self._random.choice((0, 1, past, past))

    async def _take(self, watch: Watch, shown: Shown) -> None:
        left, work_s = self._random.randint(*_LIFE_REVISIONS), self._random.choice(_WORK_S)
        while left > 0 or self._keeper.is_ending:
            for each in await watch.come_to(watch.revision + 1):
                shown.take(each.revision, each.changes)
                left -= 1
            self._last = shown.complete = watch.revision
            if work_s and not self._keeper.is_ending:
                await asyncio.sleep(work_s)

    # --- Judging ---

    def _judge(self, refusal: Refusal, is_explained: bool, is_within: bool) -> None:
        if refusal.reason == Reason.REASON_REVISION_COMPACTED:
            self._judge_compacted(refusal)
        elif refusal.reason in TRY_AGAIN or (refusal.reason in _OF_REMOVALS and is_explained):
            pass
        elif refusal.reason == Reason.REASON_PERMISSION_DENIED and not is_within:
            if not self._place.is_scoped:
                self._failed(f"watcher {self._place.name} may see everything, and was refused")
        else:
            self._failed(f"watcher {self._place.name} was refused: {refusal!r}")

    def _judge_compacted(self, refusal: Refusal) -> None:
        """Begin anew behind a revision that is not kept."""
        if int(refusal.details["revision"]) >= int(refusal.details["oldest"]):
            self._failed(f"watcher {self._place.name} was refused what is kept: {refusal!r}")
        self._last = 0


class NarrowWatchers:
    """The processes of a run that watch parts. `failed` is told of each that ended by an error."""

    def __init__(self, world: World, failed: Callable[[str], None]) -> None:
        self._world = world
        self._failed = failed
        self._lives: list[NarrowLife] = []
        self._places: list[WatchedPlace] = []
        self._keepers: dict[WorldProcess, Keeper] = {}

    def begin(self, access: Access, count: int) -> None:
        """Start so many; some of their users see nothing but the place."""
        world = self._world
        for number in range(count):
            random = Random(f"narrow watcher {number} of {world.seed}")
            place = WatchedPlace(f"part{number}", is_scoped=random.randrange(2) == 0)
            process = world.process(place.name, world.machine(f"10.1.0.{number + 1}"))
            keeper = Keeper(place, random.getrandbits(64), access)
            watcher = NarrowWatcher(
                *(place, keeper, random.getrandbits(64), access),
                *(self._lives, self._failed, world.marks),
            )
            self._places.append(place)
            self._keepers[process] = keeper
            process.ended = telling(self._failed, f"watcher {place.name}")
            process.run(watcher.run)

    def end(self) -> None:
        """Let each end once its place is whole, and it was shown everything."""
        for keeper in self._keepers.values():
            keeper.is_ending = True

    @property
    def are_over(self) -> bool:
        """Whether each has ended."""
        return not any(process.is_alive for process in self._keepers)

    @property
    def revisions(self) -> int:
        """How many revisions were shown."""
        return sum(len(life.shown.changes) for life in self._lives)

    def violations(self, feed: ShownFeed) -> list[str]:
        """Return what is wrong, given what watchers of everything were shown."""
        hidden = {place.name: place.hidden for place in self._places}
        told = [change for place in self._places for change in place.told]
        return narrow_violations(self._lives, feed, hidden, told)
