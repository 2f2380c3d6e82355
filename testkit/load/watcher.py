"""A program that watches the cluster, ends now and then, and goes on from where it was.

It follows the feed by the client library, through every fault. A new life begins behind the
revision up to which the last one had come, as in a program that keeps its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Final, TypeAlias

from google.protobuf.message import Message

from testkit.oracles.feeds import Shown, ShownFeed
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.client.errors import CannotConnect, TimedOut
from viewstamp.client.watching import Watch
from viewstamp.errors import Refusal

# Opens a watch from a revision (0 for the next one) of some types (none for all).
Opening: TypeAlias = Callable[[int, Sequence[type[Message]]], AbstractAsyncContextManager[Watch]]

_PAUSE_S: Final = 0.2
_LOOK_AGAIN_S: Final = 0.05
# Begin anew here: what was asked for is gone, or was never there.
_BEGIN_ANEW: Final = frozenset({Reason.REASON_REVISION_COMPACTED})
# Refusals of an opening that a watcher has to live with while there are faults.
TRY_AGAIN: Final = frozenset(
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


class Watcher:
    """Watches, in one life after another, until told to end.

    A life is shown between so many revisions as `life_revisions` says. `last_revision` is the last
    one of which a caller was told.
    """

    def __init__(
        self,
        seed: int | str,
        opened: Opening,
        feed: ShownFeed,
        last_revision: Callable[[], int],
        life_revisions: tuple[int, int],
    ) -> None:
        self.is_ending = False
        """Whether it ends once it was shown everything up to the last revision."""
        self._random = Random(seed)
        self._opened = opened
        self._feed = feed
        self._last_revision = last_revision
        self._life_revisions = life_revisions
        self._place = 0

    async def run(self) -> None:
        """Watch, and watch again. Raises Refusal of what a right watch is never refused.

        Raises AssertionError if a watch goes back, ClientError of a watch that cannot go on.
        """
        while not self._has_ended:
            try:
                await self._live()
            except Refusal as refusal:
                if refusal.reason in _BEGIN_ANEW:
                    self._place = 0
                elif refusal.reason not in TRY_AGAIN:
                    raise
            except (CannotConnect, TimedOut):
                pass  # as long as there are faults
            await asyncio.sleep(_PAUSE_S)

    @property
    def _has_ended(self) -> bool:
        return self.is_ending and self._place >= self._last_revision()

    async def _live(self) -> None:
        only_topics = self._random.randrange(3) == 0
        kinds = (streams_pb2.Topic,) if only_topics else ()
        async with self._opened(self._place + 1 if self._place else 0, kinds) as watch:
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
        left = self._random.randint(*self._life_revisions)
        while left > 0:
            for shown in await watch.come_to(watch.revision + 1):
                life.take(shown.revision, shown.changes)
                left -= 1
            self._place = life.complete = watch.revision
