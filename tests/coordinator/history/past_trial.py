"""A builder and its turns with a conversation in this process, and a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from coordinator.history.bases import PastBases
from coordinator.history.builder import BuilderPorts, PastBuilder, WalkedLog
from coordinator.history.messages import (
    ApplyEntries,
    PastAnswer,
    PastMessage,
    SoughtEntity,
    WalkEntries,
)
from coordinator.history.process import PastEndedError, PastLink
from coordinator.history.tally import PastTally
from coordinator.history.turns import IsWanted, PastQuestion, PastTurns
from coordinator.mux.catalog_types import Snapshot, SnapshotState
from coordinator.replica.writer import Gone, HeldEntries, Reading
from coordinator.snapshot.errors import NoIntactCopy
from coordinator.snapshot.restore import Loaded
from past.conversation import PastConversation
from viewstamp.format.prepare import SealedPrepare

USER = 7
OTHER = 8


class FakeLink:
    """A process that can die, and that can be held."""

    def __init__(self, take_time: Callable[[PastMessage], None]) -> None:
        self._take_time = take_time
        self.conversation = PastConversation()
        self.asked: list[PastMessage] = []
        self.is_dead = False
        self.is_ended = False
        self.is_applying = asyncio.Event()

    async def ask(self, message: PastMessage) -> PastAnswer:
        """Answer as the process does."""
        self.asked.append(message)
        self._take_time(message)
        if isinstance(message, ApplyEntries):
            self.is_applying.set()
        await asyncio.sleep(0)
        if self.is_dead:
            raise PastEndedError("it has died")
        return self.conversation.answer(message)

    def end(self) -> None:
        """Be ended."""
        self.is_ended = True


class PastTrial:
    """One replica's way into the past. Each piece of the log takes a second of its clock."""

    def __init__(self, entries: list[SealedPrepare], idle_ms: int = 60_000) -> None:
        self.entries = entries
        self.clock_s = 0.0
        self.first_op = 1
        self.snapshots: list[Snapshot] = []
        self.loads: list[int] = []
        self.loaded: Loaded | None = None
        self.links: list[FakeLink] = []
        self.is_launched = asyncio.Event()
        self.live: dict[int, bytes] = {}
        self.damaged: list[int] = []
        self.is_torn = False
        self.faulty: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        ports = BuilderPorts(
            launch=self._launch,
            bases=self._bases,
            load=self._load,
            read=self._read,
            found_faulty=self._found_faulty,
            live_digest=self.live.get,
        )
        self.tally = PastTally(lambda: self.clock_s)
        self.builder = PastBuilder(ports, self.tally)
        self.turns = PastTurns(self.builder, self._start, idle_ms)

    @property
    def link(self) -> FakeLink:
        """The last process."""
        return self.links[-1]

    def add_snapshot(self, entry: SealedPrepare) -> None:
        """Have a snapshot of the state behind an entry."""
        generation = len(self.snapshots) + 1
        state = SnapshotState.COMPLETED
        self.snapshots.append(Snapshot(generation, state, entry.op, entry.last_revision))

    def ask(self, revision: int, user_id: int = USER) -> asyncio.Future[Any]:
        """Ask for the place of the state at a revision."""
        return self.turns.ask(PastQuestion(user_id, revision, len(self.entries), self._place_of))

    def walk(
        self, sought: SoughtEntity, from_revision: int = 1, room: int = 10, goal: bytes = b""
    ) -> asyncio.Future[WalkedLog]:
        """Ask for the changes of an entity; with a goal, as one page of several."""

        async def walk(builder: PastBuilder, is_wanted: IsWanted) -> WalkedLog:
            return await builder.walk(sought, from_revision, len(self.entries), room, is_wanted)

        question = PastQuestion(
            USER, 0, len(self.entries), walk, goal, lambda walked: bool(walked.next_revision)
        )
        return self.turns.ask(question)

    async def _place_of(self, builder: PastBuilder, _: object) -> int:
        assert builder.place is not None
        return builder.place.revision

    async def _launch(self) -> PastLink:
        self.links.append(FakeLink(self._take_time))
        self.is_launched.set()
        return self.links[-1]

    def _take_time(self, message: PastMessage) -> None:
        self.clock_s += isinstance(message, ApplyEntries | WalkEntries)

    async def _bases(self) -> PastBases:
        stored = [snapshot.generation for snapshot in self.snapshots]
        return PastBases(self.snapshots, stored, self.first_op)

    def _load(self, generation: int) -> Loaded:
        self.loads.append(generation)
        if self.loaded is None:
            raise NoIntactCopy(f"generation {generation}", ())
        return self.loaded

    async def _read(self, first_op: int, last_op: int) -> Reading:
        if first_op < self.first_op:
            return Gone(self.first_op)
        if self.is_torn:
            return HeldEntries(())
        if first_op in self.damaged:
            return HeldEntries((), first_op)
        return HeldEntries(tuple(self.entries[first_op - 1 : min(first_op, last_op)]))

    def _found_faulty(self, op: int) -> None:
        self.faulty.append(op)
        self.damaged.remove(op)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
