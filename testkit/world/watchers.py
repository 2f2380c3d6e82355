"""The processes of a run that watch the cluster by the real library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Final

from testkit.load.watcher import Watcher
from testkit.oracles.feeds import ShownFeed, ToldChange
from testkit.oracles.history import Operation
from testkit.world.process import telling
from testkit.world.workload import CREATE, DELETE, DONE
from viewstamp.client import connect
from viewstamp.limits import ROOT_USERNAME

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from testkit.load.watcher import Opening
    from testkit.world.clients import Access
    from testkit.world.process import WorldProcess
    from testkit.world.world import World
    from viewstamp.client.watching import Watch

_CONNECT_PATIENCE_S: Final = 120.0
# A watcher is shown so many revisions, and then ends.
_LIFE_REVISIONS: Final = (5, 80)


def told_changes(operations: Iterable[tuple[str, Operation]]) -> list[ToldChange]:
    """Return the creations and deletions of topics that callers know to be done."""
    return [
        ToldChange(operation.kind, operation.revision)
        for _, operation in operations
        if operation.kind in (CREATE, DELETE)
        and operation.output == DONE
        and operation.revision is not None
    ]


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
            random = Random(self._world.schedule.random.getrandbits(64))
            opened = _connecting(access, random)
            watcher = Watcher(
                random.getrandbits(64), opened, self.feed, self._last_revision, _LIFE_REVISIONS
            )
            self._watching[process] = watcher
            process.ended = telling(self._failed, f"watcher {name}")
            process.run(watcher.run)

    def end(self) -> None:
        """Let each end once it was shown everything."""
        for watcher in self._watching.values():
            watcher.is_ending = True

    @property
    def are_over(self) -> bool:
        """Whether each has ended."""
        return not any(process.is_alive for process in self._watching)


def _connecting(access: Access, random: Random) -> Opening:
    """Return what opens watches, each by a client of its own that knows the replicas anew."""

    @asynccontextmanager
    async def opened(from_revision: int, kinds: Sequence[type[Message]]) -> AsyncIterator[Watch]:
        addresses = list(access.addresses)
        random.shuffle(addresses)
        client = await connect(
            addresses,
            username=ROOT_USERNAME,
            password=access.password,
            connect_timeout_s=_CONNECT_PATIENCE_S,
            timeout_s=_CONNECT_PATIENCE_S,
            register_session=False,
        )
        async with client, client.watch(from_revision=from_revision, entity_types=kinds) as watch:
            yield watch

    return opened
