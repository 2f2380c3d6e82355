"""Reading a frozen section: encoded beside the applies, compressed in threads.

Encoding runs on the event loop, since rows are Python objects, in slices that an apply can wait
for. Only a few blocks are under way at a time, so that a slow reader slows down the encoding.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from typing import Any, Final

from services.runtime.freezing import SectionFreezer
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.format.block import Block, BlockBuilder, RawBlock, compress
from viewstamp.format.section import SectionEntry, SectionTally
from viewstamp.limits import ENCODE_SLICE_US
from viewstamp.machine.freezing import Frozen

# Changes between two readings of the clock.
CHANGES_PER_LOOK: Final = 8
# Blocks being compressed, or waiting to be sent.
BLOCKS_IN_FLIGHT_MAX: Final = 4

_NS_PER_US: Final = 1000


class ReadingOvertaken(Exception):  # noqa: N818 - how a reading ends, not a fault
    """The section is no longer frozen, or another coordinator is served."""


class SectionReading:
    """One reading of the cut that a freezer holds."""

    def __init__(
        self,
        freezer: SectionFreezer[Any],
        frozen: Frozen[Any],
        section_version: int,
        threads: Executor,
        is_current: Callable[[], bool],
    ) -> None:
        """Read `frozen`; `threads` compress. Once `is_current` is false the reading ends."""
        self._freezer = freezer
        self._frozen = frozen
        self._section_version = section_version
        self._threads = threads
        self._is_current = is_current

    async def responses(self) -> AsyncIterator[pb.ReadSectionResponse]:
        """Yield the blocks, and last the summary. Raises ReadingOvertaken."""
        tally = await self._tally_of_base()
        in_flight: deque[asyncio.Future[Block]] = deque()
        loop = asyncio.get_running_loop()
        try:
            for raw in _raw_blocks(self._frozen, tally):
                if raw is None:
                    await self.pause()
                    continue
                in_flight.append(loop.run_in_executor(self._threads, compress, raw))
                if len(in_flight) >= BLOCKS_IN_FLIGHT_MAX:
                    yield _response(await in_flight.popleft())
                    self._check()
            while in_flight:
                yield _response(await in_flight.popleft())
                self._check()
        finally:
            for waiting in in_flight:
                waiting.cancel()
        self._freezer.counted(self._frozen, tally)
        yield pb.ReadSectionResponse(summary=self._summary(tally))

    async def _tally_of_base(self) -> SectionTally:
        """Return the tally of the base, after counting a released cut that nobody has read."""
        behind = self._freezer.behind_base()
        tally = self._freezer.tally()
        if behind is not None:
            for entry in entries_in_slices(behind, tally):
                if entry is None:
                    await self.pause()
            self._freezer.counted(behind, tally)
        return tally

    async def pause(self) -> None:
        """Let other tasks run first."""
        await asyncio.sleep(0)
        self._check()

    def _check(self) -> None:
        if not self._is_current():
            raise ReadingOvertaken(
                f"cut {self._frozen.generation} was released, folded into a later one, or asked "
                "for again meanwhile"
            )

    def _summary(self, tally: SectionTally) -> pb.SectionSummary:
        frozen = self._frozen
        return pb.SectionSummary(
            generation=frozen.generation,
            base_generation=frozen.base_generation,
            applied_revision=frozen.revision,
            section_version=self._section_version,
            state_digest=tally.digest.to_bytes(),
            kinds=[pb.KindCount(kind=k, entities=count) for k, count in tally.kinds.items()],
        )


def _raw_blocks(frozen: Frozen[Any], tally: SectionTally) -> Iterator[RawBlock | None]:
    """Yield the blocks of a cut, and None whenever a slice is over."""
    builder = BlockBuilder()
    for entry in entries_in_slices(frozen, tally):
        if entry is None:
            yield None
            continue
        builder.add(entry)
        if builder.is_full:
            yield builder.take_raw()
    while builder.size_bytes:
        yield builder.take_raw()


def entries_in_slices(frozen: Frozen[Any], tally: SectionTally) -> Iterator[SectionEntry | None]:
    """Count the changes of a cut; yield their entries, and None whenever a slice is over."""
    clock, slice_ns = time.perf_counter_ns, ENCODE_SLICE_US * _NS_PER_US
    until = clock() + slice_ns
    for index, change in enumerate(frozen.walk()):
        if change is not None:
            entry = tally.add(change)
            if entry is not None:
                yield entry
        if (change is None or not index % CHANGES_PER_LOOK) and clock() > until:
            yield None
            until = clock() + slice_ns


def _response(block: Block) -> pb.ReadSectionResponse:
    (first_kind, first_key), (last_kind, last_key) = block.first, block.last
    return pb.ReadSectionResponse(
        block=pb.SectionBlock(
            data=block.data,
            entries=block.entries,
            tombstones=block.tombstones,
            raw_bytes=block.raw_bytes,
            first_kind=first_kind,
            first_key=first_key,
            last_kind=last_kind,
            last_key=last_key,
        )
    )
