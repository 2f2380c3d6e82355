"""Leads the process of the past to a revision: a snapshot's sections, then the log behind it.

A state goes on where it is if the revision lies ahead, and is built anew otherwise. Sections are
read as for a service that restarts, and committed entries as for a peer that lacks some, a piece
at a time. So whatever a build costs the coordinator waits in turns with its other work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from coordinator.history.bases import EMPTY_BASE, PastBases, StateBase
from coordinator.history.messages import (
    AddBlocks,
    ApplyEntries,
    BeginState,
    FoundChange,
    LoadState,
    PastAnswer,
    PastMessage,
    SoughtEntity,
    StateFailed,
    StatePlace,
    WalkedEntries,
    WalkEntries,
)
from coordinator.history.process import PastEndedError, PastLauncher, PastLink
from coordinator.history.tally import NobodyWaitsError, PastTally
from coordinator.replica.writer import Gone, HeldEntries, Reading
from coordinator.snapshot.errors import GenerationDamaged, NoIntactCopy
from coordinator.snapshot.restore import Loaded
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.format import FormatError
from viewstamp.format.manifest import encode_manifest, sections
from viewstamp.format.prepare import SealedPrepare
from viewstamp.past_limits import BLAME_PAGE_BYTES_MAX, BLAME_WALK_MS
from viewstamp.telemetry import fields

# Blocks of a snapshot in one message; each has at most some 64 KiB.
BLOCKS_TOGETHER: Final = 16
# An entry may be committed before it is in the journal here, or has to come from a peer.
ENTRY_RETRY_MS: Final = 50

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuilderPorts:
    """What a builder works with.

    `bases` says what there is to begin with; `load` opens a generation and blocks meanwhile. `read`
    returns committed entries from an op to another one, as many as fit; `found_faulty` is told of a
    damaged one. `live_digest` is the digest that this replica had at an op, None if not kept.
    """

    launch: PastLauncher
    bases: Callable[[], Awaitable[PastBases]]
    load: Callable[[int], Loaded]
    read: Callable[[int, int], Awaitable[Reading]]
    found_faulty: Callable[[int], None]
    live_digest: Callable[[int], bytes | None]


@dataclass(slots=True)
class WalkedLog:
    """What a walk has found; `next_revision` is from where to go on, 0 at the end of the log."""

    ids: frozenset[int]
    found: list[FoundChange] = field(default_factory=list)
    next_revision: int = 0
    size_bytes: int = 0

    def has_room(self, changes: int) -> bool:
        """Return whether there is room for one more of so many changes, and for their bytes."""
        return len(self.found) < changes and self.size_bytes < BLAME_PAGE_BYTES_MAX

    def add(self, answer: WalkedEntries) -> None:
        """Take what a piece of the log has brought."""
        self.ids = answer.ids
        self.found += answer.found
        self.size_bytes += sum(each.change.ByteSize() for each in answer.found)
        self.next_revision = answer.next_revision


class PastBuilder:
    """Holds at most one state. Its methods are called one at a time."""

    def __init__(self, ports: BuilderPorts, tally: PastTally | None = None) -> None:
        self.tally: Final = tally or PastTally()
        self._ports = ports
        self._link: PastLink | None = None
        self._place = StatePlace()

    @property
    def place(self) -> StatePlace | None:
        """Where the state is; None if there is none."""
        return None if self._link is None else self._place

    async def lead_to(
        self, revision: int, committed_op: int, is_wanted: Callable[[], bool]
    ) -> StatePlace:
        """Build the state of a revision that entries up to `committed_op` hold.

        Raises Refusal REVISION_COMPACTED, INTERNAL, SNAPSHOT_DAMAGED or OVERLOADED, and
        NobodyWaitsError.
        """
        async with self._ended_by_failure(is_build=not self.is_at(revision)):
            await self._begin_near(revision)
            if not await self._apply_to(revision, committed_op, is_wanted):
                # The log behind a kept state was dropped meanwhile.
                await self._begin(await self._base_of(revision))
                if not await self._apply_to(revision, committed_op, is_wanted):
                    raise await self._compacted(revision)
            await self._check_digest()
        return self._place

    async def walk(
        self,
        sought: SoughtEntity,
        from_revision: int,
        committed_op: int,
        room: int,
        is_wanted: Callable[[], bool],
    ) -> WalkedLog:
        """Go through the log from a revision on, and return what an entity's changes were.

        It ends at the last committed entry, when there is no room for more changes or their bytes,
        or after BLAME_WALK_MS. Raises what `lead_to` raises.
        """
        walked = WalkedLog(sought.ids)
        async with self._ended_by_failure():
            if self._place.is_partial:
                self.end()
            await self._begin_near(from_revision - 1)
            loop = asyncio.get_running_loop()
            ends = loop.time() + BLAME_WALK_MS / 1000
            while self._place.op < committed_op and walked.has_room(room):
                asked = replace(sought, ids=walked.ids)
                entries = await self._next_entries(from_revision, committed_op, is_wanted)
                left = room - len(walked.found)
                answer = await self.ask(WalkEntries(entries, asked, from_revision, left))
                assert isinstance(answer, WalkedEntries), "a walk is answered by what was found"
                walked.add(answer)
                if answer.next_revision or loop.time() > ends:
                    break
            await self._check_digest()
        if not walked.next_revision and self._place.op < committed_op:
            walked.next_revision = max(from_revision, self._place.revision + 1)
        return walked

    async def ask(self, message: PastMessage) -> PastAnswer:
        """Return the answer of the process. Raises Refusal OVERLOADED, INTERNAL."""
        if self._link is None:
            self._link = await self._started()
        try:
            answer = await self._link.ask(message)
        except PastEndedError as ended:
            self.end()
            raise _not_now(str(ended)) from ended
        except BaseException:
            self.end()  # its next answer would be to this message
            raise
        if isinstance(answer, StateFailed):
            self.end()
            raise Refusal(
                Reason.REASON_SNAPSHOT_DAMAGED,
                f"no earlier state can be built here: {answer.problem}; ask another replica",
            )
        if isinstance(answer, StatePlace):
            self._moved_to(answer, message)
        elif isinstance(answer, WalkedEntries):
            self._moved_to(answer.place, message)
        return answer

    async def oldest_revision(self) -> int:
        """Return the revision of the first state from which on all can be built here."""
        return (await self._ports.bases()).oldest_revision

    def end(self) -> None:
        """End the process, and forget the state."""
        link, self._link = self._link, None
        self._place = StatePlace()
        if link is not None:
            link.end()

    def _moved_to(self, place: StatePlace, message: PastMessage) -> None:
        if isinstance(message, ApplyEntries | WalkEntries):
            self.tally.replayed_revisions += place.revision - self._place.revision
        self._place = place

    def is_at(self, revision: int) -> bool:
        """Return whether there is a state, and of this revision."""
        return self.place is not None and self.place.revision == revision

    @asynccontextmanager
    async def _ended_by_failure(self, *, is_build: bool = True) -> AsyncIterator[None]:
        """End the process, whose state nobody knows, if the block fails; count a build."""
        try:
            with self.tally.building() if is_build else nullcontext():
                yield
        except NobodyWaitsError:
            raise
        except BaseException:
            self.end()
            raise

    def _may_go_on(self, revision: int) -> bool:
        place = self.place
        if place is None or place.revision > revision:
            return False
        return place.revision == revision or not place.is_partial

    async def _begin_near(self, revision: int) -> None:
        """Begin anew, unless the state can go on to a revision and no snapshot is nearer."""
        if not self._may_go_on(revision):
            await self._begin(await self._base_of(revision))
        elif self._place.revision < revision:
            base = (await self._ports.bases()).best_for(revision)
            if base is not None and base.revision > self._place.revision:
                await self._begin(base)

    async def _base_of(self, revision: int) -> StateBase:
        bases = await self._ports.bases()
        base = bases.best_for(revision)
        if base is None:
            raise compacted_state(revision, bases.oldest_revision)
        return base

    async def _compacted(self, revision: int) -> Refusal:
        return compacted_state(revision, await self.oldest_revision())

    async def _started(self) -> PastLink:
        try:
            return await self._ports.launch()
        except PastEndedError as error:
            raise _not_now(str(error)) from error

    # --- Snapshots ---

    async def _begin(self, base: StateBase) -> None:
        """Begin anew. It is not given up half-way: all of it would have to be done again."""
        if base == EMPTY_BASE:
            await self.ask(BeginState(None))
            return
        try:
            await self._load(base.generation)
        except (NoIntactCopy, GenerationDamaged, FormatError) as error:
            raise Refusal(
                Reason.REASON_SNAPSHOT_DAMAGED, str(error), generation=base.generation
            ) from error

    async def _load(self, generation: int) -> None:
        loaded = await asyncio.to_thread(self._ports.load, generation)
        try:
            await self._send(loaded)
        finally:
            await asyncio.to_thread(loaded.close)

    async def _send(self, loaded: Loaded) -> None:
        await self.ask(BeginState(encode_manifest(loaded.manifest)))
        for stage, _ in sections(loaded.manifest):
            blocks = loaded.blocks(stage)
            while some := await asyncio.to_thread(_some_of, blocks):
                await self.ask(AddBlocks(stage, some))
        await self.ask(LoadState())
        _log.info(
            "earlier state restored",
            extra=fields(generation=loaded.manifest.generation, revision=self._place.revision),
        )

    # --- The log ---

    async def _apply_to(
        self, revision: int, committed_op: int, is_wanted: Callable[[], bool]
    ) -> bool:
        """Apply entries up to a revision; False if the next one is not kept any more."""
        while self._place.revision < revision:
            if not is_wanted():
                raise NobodyWaitsError
            op = self._place.op + 1
            assert op <= committed_op, f"revision {revision} is behind op {committed_op}"
            held = await self._ports.read(op, committed_op)
            if isinstance(held, Gone):
                return False
            if held.prepares:
                await self.ask(ApplyEntries(_up_to(held.prepares, revision), revision))
                continue
            await self._wait_for_entry(held)
        return True

    async def _next_entries(
        self, revision: int, committed_op: int, is_wanted: Callable[[], bool]
    ) -> Sequence[SealedPrepare]:
        """Return the next entries for a walk from a revision. Raises Refusal, NobodyWaitsError."""
        while is_wanted():
            held = await self._ports.read(self._place.op + 1, committed_op)
            if isinstance(held, Gone):
                raise await self._compacted(revision)
            if held.prepares:
                return held.prepares
            await self._wait_for_entry(held)
        raise NobodyWaitsError

    async def _wait_for_entry(self, held: HeldEntries) -> None:
        if held.damaged_op is not None:
            self._ports.found_faulty(held.damaged_op)
        await asyncio.sleep(ENTRY_RETRY_MS / 1000)

    async def _check_digest(self) -> None:
        """Compare with what this replica came to, if it still knows. Raises Refusal INTERNAL."""
        place = self._place
        live = self._ports.live_digest(place.op) if place.digest else None
        if live is None or live == place.digest:
            return
        _log.error(
            "the state built for a read of the past differs from what this replica had",
            extra=fields(op=place.op, live=live.hex(), built=place.digest.hex()),
        )
        raise Refusal(
            Reason.REASON_INTERNAL,
            f"the log was executed otherwise when the state of revision {place.revision} was built"
            " again: please report it, with the log of the coordinator",
            revision=place.revision,
        )


def compacted_state(revision: int, oldest: int) -> Refusal:
    """Return the refusal of a state that cannot be built any more."""
    return Refusal(
        Reason.REASON_REVISION_COMPACTED,
        f"the state of revision {revision} cannot be read any more: snapshots have taken the place"
        f" of the log before it; the oldest one is {oldest}",
        revision=revision,
        oldest=oldest,
    )


def _up_to(prepares: Sequence[SealedPrepare], revision: int) -> list[SealedPrepare]:
    """Leave out the entries behind a revision."""
    return [each for each in prepares if each.first_revision <= revision]


def _some_of(blocks: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return list(islice(blocks, BLOCKS_TOGETHER))


def _not_now(problem: str) -> Refusal:
    return Refusal(Reason.REASON_OVERLOADED, f"{problem}; try again, or ask another replica")
