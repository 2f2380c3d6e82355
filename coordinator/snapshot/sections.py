"""The sections of a cut as one stream of messages each, wherever they were frozen.

Services send theirs by ReadSection. Sessions and catalog were frozen inside the mux, and are
encoded here: on the event loop, a slice at a time, so that commands run between two slices, and
compressed in a thread. Both look the same to the writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import grpc

from coordinator.base.clock import slice_clock_ns
from coordinator.mux.catalog_types import CutTaken, FrozenSection
from coordinator.mux.stage import Stage
from coordinator.snapshot.inner_sections import VERSIONS
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.format.block import Block, BlockBuilder, EntryTooLargeError, RawBlock, compress
from viewstamp.format.section import SectionEntry, SectionTally
from viewstamp.limits import ENCODE_SLICE_US, KIB

# Reading the clock costs about as much as encoding one entity.
ENTITIES_PER_LOOK: Final = 8
# Bytes of a block before compression, which then takes 0.02 ms.
COMPRESSED_AT_ONCE_BYTES_MAX: Final = 8 * KIB

# Errors of a service that is away, behind in its replay, was asked by a coordinator that it does
# not serve yet, or restarted while it was read (its stream broke). All of them pass.
_PASSING: Final = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)


class GenerationFailed(Exception):  # noqa: N818  What becomes of the generation, not of us.
    """The generation cannot be made durable here; the message says why. Retrying is useless."""


class SectionUnavailable(Exception):  # noqa: N818  It passes; not an error of ours.
    """The section cannot be read now: its service is restarting. Read it again from the start.

    The part read so far is useless: a new process may cut its blocks elsewhere.
    """


# The parts of a section: its blocks in order, and last its summary.
SectionPart: TypeAlias = Block | domain_pb2.SectionSummary


@dataclass(frozen=True, slots=True)
class SectionHead:
    """The content of a layer's header, which must be known before its blocks."""

    section_version: int
    base_generation: int


class SectionSource(Protocol):
    """Where the sections of a cut come from."""

    def expected(self, stage: Stage, cut: CutTaken) -> SectionHead:
        """Return the likely content of the summary, which is certain only at its end."""
        ...

    def read(self, stage: Stage, cut: CutTaken) -> AsyncGenerator[SectionPart]:
        """Yield the blocks of a section in order, and last its summary.

        Raises SectionUnavailable, GenerationFailed.
        """
        ...


class SectionReader(Protocol):
    """The way to one service (`stages.client.StageClient`)."""

    def read_section(self, generation: int) -> AsyncGenerator[domain_pb2.ReadSectionResponse]:
        """Yield the section that the service froze. Raises grpc.RpcError."""
        ...


@dataclass(frozen=True, slots=True)
class SectionBase:
    """The tally of a section at a generation: digest and entities by kind."""

    digest: int = 0
    kinds: tuple[tuple[int, int], ...] = ()


class CutSections:
    """Reads services over gRPC, and sessions and catalog from what the mux froze.

    `versions` are the services' own, by stage. `restored` has the tallies of the generation from
    which the replica was restored.
    """

    def __init__(
        self,
        services: Mapping[Stage, SectionReader],
        versions: Callable[[Stage], int],
        restored: Mapping[tuple[Stage, int], SectionBase] | None = None,
        clock_ns: Callable[[], int] = slice_clock_ns,
    ) -> None:
        self._services = services
        self._versions = versions
        self._clock_ns = clock_ns
        self._bases: dict[tuple[Stage, int], SectionBase] = dict(restored or {})

    def expected(self, stage: Stage, cut: CutTaken) -> SectionHead:
        """Return the likely base of the section: that of the mux's sections."""
        version = VERSIONS[stage] if stage in VERSIONS else self._versions(stage)
        frozen = _frozen(stage, cut) if stage in VERSIONS else cut.sessions
        return SectionHead(version, frozen.base_generation)

    async def read(self, stage: Stage, cut: CutTaken) -> AsyncGenerator[SectionPart]:
        """Yield the blocks of a section in order, and last its summary."""
        parts = (
            self._read_frozen(stage, cut, _frozen(stage, cut))
            if stage in VERSIONS
            else _read_service(self._services[stage], cut.generation)
        )
        async with aclosing(parts):  # a reader that stops ends the call to the service
            async for part in parts:
                yield part

    def forget_before(self, generation: int) -> None:
        """Drop the tallies of generations from which no cut counts any more."""
        self._bases = {key: base for key, base in self._bases.items() if key[1] >= generation}

    async def _read_frozen(
        self, stage: Stage, cut: CutTaken, frozen: FrozenSection
    ) -> AsyncGenerator[SectionPart]:
        base = self._base(stage, frozen.base_generation)
        tally = SectionTally(base.digest, dict(base.kinds))
        async with aclosing(self._blocks(frozen, tally)) as blocks:
            async for block in blocks:
                yield block
        kinds = tuple(tally.kinds.items())
        self._bases[stage, cut.generation] = SectionBase(tally.digest.value, kinds)
        yield _summary(stage, cut, frozen, tally)

    def _base(self, stage: Stage, generation: int) -> SectionBase:
        if generation == 0:
            return SectionBase()
        base = self._bases.get((stage, generation))
        if base is None:
            raise GenerationFailed(
                f"the {stage.name.lower()} section is a delta against generation {generation},"
                " whose digest is not known here"
            )
        return base

    async def _blocks(self, frozen: FrozenSection, tally: SectionTally) -> AsyncGenerator[Block]:
        builder = BlockBuilder()
        slice_end_ns = self._clock_ns() + _SLICE_NS
        for index, change in enumerate(frozen.walk()):
            entry = None if change is None else tally.add(change)
            if entry is not None:
                _add(builder, entry)
            if builder.is_full:
                yield await _compressed(builder.take_raw())
            is_look_due = change is None or index % ENTITIES_PER_LOOK == 0
            if is_look_due and self._clock_ns() >= slice_end_ns:
                await asyncio.sleep(0)
                slice_end_ns = self._clock_ns() + _SLICE_NS
        while builder.size_bytes:
            yield await _compressed(builder.take_raw())


def _add(builder: BlockBuilder, entry: SectionEntry) -> None:
    """Add an entry. Raises GenerationFailed for one too large for a snapshot."""
    try:
        builder.add(entry)
    except EntryTooLargeError as error:
        raise GenerationFailed(f"the section cannot be written: {error}") from error


_SLICE_NS: Final = ENCODE_SLICE_US * 1_000


async def _compressed(raw: RawBlock) -> Block:
    """Compress a block: a small one at once, since using a thread takes longer."""
    if len(raw.raw) <= COMPRESSED_AT_ONCE_BYTES_MAX:
        return compress(raw)
    return await asyncio.to_thread(compress, raw)


async def _read_service(service: SectionReader, generation: int) -> AsyncGenerator[SectionPart]:
    try:
        async with aclosing(service.read_section(generation)) as responses:
            async for response in responses:
                yield response.summary if response.HasField("summary") else _block(response.block)
    except grpc.RpcError as error:
        why = f"{error.code().name}: {error.details()}"
        if error.code() in _PASSING:
            raise SectionUnavailable(why) from error
        raise GenerationFailed(f"a service cannot hand over its section: {why}") from error


def head_of(summary: domain_pb2.SectionSummary) -> SectionHead:
    """Return the summary's content of the layer's header."""
    return SectionHead(summary.section_version, summary.base_generation)


def _frozen(stage: Stage, cut: CutTaken) -> FrozenSection:
    return cut.sessions if stage is Stage.SESSIONS else cut.catalog


def _block(message: domain_pb2.SectionBlock) -> Block:
    return Block(
        message.data,
        message.entries,
        message.tombstones,
        message.raw_bytes,
        (message.first_kind, message.first_key),
        (message.last_kind, message.last_key),
    )


def _summary(
    stage: Stage, cut: CutTaken, frozen: FrozenSection, tally: SectionTally
) -> domain_pb2.SectionSummary:
    return domain_pb2.SectionSummary(
        generation=frozen.generation,
        base_generation=frozen.base_generation,
        applied_revision=cut.revision,
        section_version=VERSIONS[stage],
        state_digest=tally.digest.to_bytes(),
        kinds=[
            domain_pb2.KindCount(kind=kind, entities=entities)
            for kind, entities in tally.kinds.items()
        ],
    )
