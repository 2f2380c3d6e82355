"""Clients that watch the cluster, and the judge of what they are shown.

A watcher follows the feed by the real library, through every fault. Now and then it ends and a new
one goes on from the revision up to which the old one had come, as a program does that keeps its
place. All watchers of a run must be shown the same changes for a revision, each revision once and
in order, and none may be left out: neither what another watcher was shown nor what a caller was
told to have done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from testkit.oracles.history import Operation
from testkit.world.workload import CREATE, DELETE, DONE
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client import Client, connect
from viewstamp.client.errors import CannotConnect, TimedOut
from viewstamp.errors import Refusal
from viewstamp.limits import ROOT_USERNAME

if TYPE_CHECKING:
    from testkit.world.clients import Access
    from testkit.world.process import WorldProcess
    from testkit.world.world import World
    from viewstamp.client.watching import Watch

_TOPIC: Final = streams_pb2.Topic.DESCRIPTOR.full_name
_CONNECT_PATIENCE_S: Final = 120.0
_PAUSE_S: Final = 0.2
_LOOK_AGAIN_S: Final = 0.05
# A watcher is shown so many revisions, and then ends.
_LIFE_REVISIONS: Final = (5, 80)
# Begin anew here: what was asked for is gone, or was never there.
_BEGIN_ANEW: Final = frozenset({Reason.REASON_REVISION_COMPACTED})
# Refusals of an opening that a watcher has to live with while there are faults.
_TRY_AGAIN: Final = frozenset(
    {
        Reason.REASON_NO_QUORUM,
        Reason.REASON_VIEW_CHANGE,
        Reason.REASON_DOMAIN_RESTARTING,
        Reason.REASON_READ_DEADLINE,
        Reason.REASON_OVERLOADED,
        Reason.REASON_QUOTA_EXCEEDED,
        Reason.REASON_NOT_PRIMARY,
        Reason.REASON_UNIMPLEMENTED,  # no service has described itself yet
    }
)


@dataclass
class Shown:
    """One watcher's life: it was shown everything behind `begin` and up to `complete`."""

    begin: int
    only_topics: bool
    complete: int = 0
    changes: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    """The encoded changes by revision."""


class ShownFeed:
    """What all watchers of a run were shown."""

    def __init__(self) -> None:
        self.lives: list[Shown] = []

    @property
    def revisions(self) -> int:
        """How many revisions were shown, over all watchers."""
        return sum(len(life.changes) for life in self.lives)

    def violations(self, told: Iterable[tuple[str, Operation]]) -> list[str]:
        """Return what is wrong, given what callers were told to have done."""
        whole: dict[int, tuple[bytes, ...]] = {}
        found: list[str] = []
        for life in self.lives:
            for revision, changes in life.changes.items():
                seen = whole.setdefault(revision, changes) if not life.only_topics else changes
                if seen != changes:
                    found.append(f"two watchers were shown different changes of {revision}")
        topics = {revision: _topics_of(changes) for revision, changes in whole.items()}
        for number, life in enumerate(self.lives):
            expected = topics if life.only_topics else whole
            found += _differences(number, life, expected)
        return found + [
            f"watcher {number} was not shown {kind} of revision {revision}"
            for kind, revision in _done(told)
            for number, life in enumerate(self.lives)
            if life.begin < revision <= life.complete and revision not in life.changes
        ]


def _differences(number: int, life: Shown, expected: dict[int, tuple[bytes, ...]]) -> list[str]:
    """Return where a life differs from what others were shown of the same revisions."""
    return [
        f"watcher {number} was shown other changes of {revision} than another one"
        for revision, changes in sorted(expected.items())
        if life.begin < revision <= life.complete and life.changes.get(revision, ()) != changes
    ]


def _topics_of(changes: Sequence[bytes]) -> tuple[bytes, ...]:
    decoded = [(each, watch_pb2.Change.FromString(each)) for each in changes]
    return tuple(each for each, change in decoded if change.entity_type == _TOPIC)


def _done(told: Iterable[tuple[str, Operation]]) -> list[tuple[str, int]]:
    """Return the creations and deletions that callers know to be done, by revision."""
    return [
        (operation.kind, operation.revision)
        for _, operation in told
        if operation.kind in (CREATE, DELETE)
        and operation.output == DONE
        and operation.revision is not None
    ]


class Watcher:
    """One process that watches, in one life after another, until told to end."""

    def __init__(
        self, seed: int, access: Access, feed: ShownFeed, last_revision: Callable[[], int]
    ) -> None:
        self.is_ending = False
        """Whether it ends once it was shown everything up to the last revision."""
        self._random = Random(seed)
        self._access = access
        self._feed = feed
        self._last_revision = last_revision
        self._place = 0

    async def run(self) -> None:
        """Watch, and watch again."""
        while not self._has_ended:
            try:
                await self._live()
            except Refusal as refusal:
                if refusal.reason in _BEGIN_ANEW:
                    self._place = 0
                elif refusal.reason not in _TRY_AGAIN:
                    raise
            except (CannotConnect, TimedOut):
                pass  # as long as there are faults
            await asyncio.sleep(_PAUSE_S)

    @property
    def _has_ended(self) -> bool:
        return self.is_ending and self._place >= self._last_revision()

    async def _live(self) -> None:
        addresses = list(self._access.addresses)
        self._random.shuffle(addresses)
        client = await connect(
            addresses,
            username=ROOT_USERNAME,
            password=self._access.password,
            connect_timeout_s=_CONNECT_PATIENCE_S,
            timeout_s=_CONNECT_PATIENCE_S,
            register_session=False,
        )
        async with client:
            await self._follow(client)

    async def _follow(self, client: Client) -> None:
        only_topics = self._random.randrange(3) == 0
        kinds = (streams_pb2.Topic,) if only_topics else ()
        from_revision = self._place + 1 if self._place else 0
        async with client.watch(from_revision=from_revision, entity_types=kinds) as watch:
            life = Shown(watch.revision, only_topics, watch.revision)
            self._feed.lives.append(life)
            self._place = watch.revision
            taking = asyncio.create_task(self._take(watch, life))
            while not taking.done() and not self._has_ended:
                await asyncio.wait({taking}, timeout=_LOOK_AGAIN_S)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        if not taking.cancelled():
            taking.result()

    async def _take(self, watch: Watch, life: Shown) -> None:
        left = self._random.randint(*_LIFE_REVISIONS)
        while left > 0:
            for shown in await watch.come_to(watch.revision + 1):
                _demand_new(life, shown.revision)
                life.changes[shown.revision] = tuple(
                    each.SerializeToString() for each in shown.changes
                )
                left -= 1
            self._place = life.complete = watch.revision


def _demand_new(life: Shown, revision: int) -> None:
    """Raise AssertionError unless a revision comes behind all that were shown."""
    last = max(life.complete, *life.changes, 0)
    assert revision > last, f"a watch went back to revision {revision} from {last}"


class Watchers:
    """The processes of a run that watch. `failed` is told of each that ended by an error."""

    def __init__(
        self, world: World, failed: Callable[[str], None], last_revision: Callable[[], int]
    ) -> None:
        self.feed = ShownFeed()
        self._world = world
        self._failed = failed
        self._last_revision = last_revision
        self._watching: dict[WorldProcess, Watcher] = {}

    def begin(self, access: Access, count: int) -> None:
        """Start so many."""
        for number in range(count):
            name = f"w{number}"
            process = self._world.process(name, self._world.machine(f"10.0.3.{number + 1}"))
            seed = self._world.schedule.random.getrandbits(64)
            watcher = Watcher(seed, access, self.feed, self._last_revision)
            self._watching[process] = watcher
            process.ended = self._ended(name)
            process.run(watcher.run)

    def end(self) -> None:
        """Let each end once it was shown everything."""
        for watcher in self._watching.values():
            watcher.is_ending = True

    @property
    def are_over(self) -> bool:
        """Whether each has ended."""
        return not any(process.is_alive for process in self._watching)

    def _ended(self, name: str) -> Callable[[BaseException | None], None]:
        def ended(error: BaseException | None) -> None:
            if error is not None:
                self._failed(f"watcher {name} failed: {error!r}")

        return ended
