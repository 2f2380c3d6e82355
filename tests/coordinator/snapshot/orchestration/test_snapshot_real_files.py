"""Orchestration over the real snapshot files: whatever happens, chains are whole and states right.

Five sections of numbered rows stand for the machines, frozen as the mux freezes its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from coordinator.mux.catalog import CatalogMachine
from coordinator.mux.catalog_types import (
    BeginSnapshot,
    CompleteSnapshot,
    CutTaken,
    FailSnapshot,
    FrozenSection,
)
from coordinator.mux.entities import number_key
from coordinator.mux.stage import SERVICE_STAGES, STAGES, Stage
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.generation_writer import StoredGenerations, durable_of
from coordinator.snapshot.sections import CutSections, SectionBase, SectionPart
from coordinator.snapshot.work import LocalWork
from coordinator.stages.codec import ProtobufCodec
from testkit.generation_builders import memory, open_files
from testkit.journal_builders import CLUSTER_ID
from tests.coordinator.snapshot.orchestration.orchestra import OrchestratorTrial
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.format.manifest import sections
from viewstamp.format.merge import merge
from viewstamp.machine.freezing import Freezer, RowKind
from viewstamp.machine.tables import ABSENT, DerivedTable


class Rows:
    """A machine of one section: numbers, and bytes for each."""

    def __init__(self, rows: dict[int, bytes] | None = None, base_generation: int = 0) -> None:
        """Begin with the restored rows."""
        self.rows = dict(rows or {})
        table = self._table = DerivedTable(self.rows.keys, self.rows.get)
        kind: RowKind[None] = RowKind(
            1, lambda _: table, lambda row: row, lambda key, _: number_key(key)
        )
        self.freezer = Freezer((kind,), None, base_generation)
        self.frozen: dict[int, FrozenSection] = {}

    def put(self, key: int, row: bytes) -> None:
        """Set a row."""
        self._table.note(key, self.rows.get(key, ABSENT))
        self.rows[key] = row

    def drop(self, key: int) -> None:
        """Remove a row."""
        self._table.note_gone(key, self.rows.pop(key))

    def freeze(self, generation: int) -> FrozenSection:
        """Freeze at a cut."""
        self.frozen[generation] = self.freezer.freeze(generation, generation)
        return self.frozen[generation]


class RowsService:
    """A service with one section: it encodes its frozen rows as the coordinator does its own."""

    def __init__(self, rows: Rows, bases: dict[tuple[Stage, int], SectionBase]) -> None:
        """Serve the rows."""
        self._rows = rows
        self._sections = CutSections({}, lambda _: 1, bases)

    async def read_section(self, generation: int) -> AsyncGenerator[domain_pb2.ReadSectionResponse]:
        """Yield the frozen rows."""
        frozen = self._rows.frozen[generation]
        cut = CutTaken(generation, 1, 1, 1, 1, 1, frozen, frozen)
        async for part in self._sections.read(Stage.SESSIONS, cut):
            yield _response(part)


def _response(part: SectionPart) -> domain_pb2.ReadSectionResponse:
    """Return the message of a service."""
    if isinstance(part, domain_pb2.SectionSummary):
        return domain_pb2.ReadSectionResponse(summary=part)
    return domain_pb2.ReadSectionResponse(
        block=domain_pb2.SectionBlock(
            data=part.data,
            entries=part.entries,
            tombstones=part.tombstones,
            raw_bytes=part.raw_bytes,
            first_kind=part.first[0],
            first_key=part.first[1],
            last_kind=part.last[0],
            last_key=part.last[1],
        )
    )


class RealWorld(OrchestratorTrial):
    """A replica with five sections of rows and real files."""

    def __init__(self, files: SnapshotFiles, adopted: int = 0) -> None:
        """Begin empty, or restored from a generation."""
        self.stored = files
        manifest = files.stored_manifest(adopted) if adopted else None
        tallies = {} if manifest is None else _tallies(manifest)
        states = _states(files, adopted) if adopted else {}
        self.rows = {stage: Rows(states.get(stage), adopted) for stage in STAGES}
        services = {
            stage: RowsService(
                self.rows[stage], {(Stage.SESSIONS, adopted): tallies[stage, adopted]}
            )
            if adopted
            else RowsService(self.rows[stage], {})
            for stage in SERVICE_STAGES
        }
        self.source = CutSections(services, lambda _: 1, tallies)
        machine = CatalogMachine(ProtobufCodec())
        if manifest is not None:
            cut = (manifest.cut_revision, manifest.cut_op)
            place = (*cut, manifest.timestamp, manifest.feature_level)
            machine.apply(BeginSnapshot(adopted, 5, 0), *place)
        super().__init__(
            machine=machine,
            adopted=None if manifest is None else durable_of(manifest),
            work=LocalWork(self.source, StoredGenerations(files, CLUSTER_ID), self._wait),
        )
        if manifest is not None:
            self.op = self.revision = manifest.cut_op

    async def _wait(self, _: Stage) -> None:
        raise AssertionError("no service goes away here")

    def cut(self, generation: int) -> CutTaken:
        """Freeze every section."""
        frozen = {stage: rows.freeze(generation) for stage, rows in self.rows.items()}
        cut = super().cut(generation)
        return replace(cut, sessions=frozen[Stage.SESSIONS], catalog=frozen[Stage.CATALOG])

    async def adopt(self, generation: int) -> None:
        """Release the generation in every section, and remove garbage."""
        await super().adopt(generation)
        for rows in self.rows.values():
            rows.freezer.release(generation)
        kept = self.orchestrator.pins()
        self.source.forget_before(min(kept))
        live = {snapshot.generation for snapshot in self.machine.list_after(0, 1000)}
        self.stored.collect_garbage(live | kept, generation)

    def put(self, key: int, row: bytes) -> None:
        """Set a different row in every section."""
        for stage, rows in self.rows.items():
            rows.put(key, row + bytes((stage,)))

    def rows_now(self) -> dict[Stage, dict[int, bytes]]:
        """Return the rows of every section as they are now."""
        return {stage: dict(rows.rows) for stage, rows in self.rows.items()}

    def check(self, generation: int, states: Any) -> None:
        """Check that a stored generation is this state, and adds up to its manifest."""
        assert _states(self.stored, generation) == states
        assert self.stored.problems(generation) == []


def _states(files: SnapshotFiles, generation: int) -> dict[Stage, dict[int, bytes]]:
    """Return the rows of every section as they were at a generation."""
    with files.load(generation) as loaded:
        return {
            Stage(stage): {
                int.from_bytes(key, "big"): canonical or b""
                for _, key, canonical in merge(
                    [layer.entries() for layer in chain], keep_tombstones=False
                )
            }
            for stage, chain in loaded.layers.items()
        }


def _tallies(manifest: Any) -> dict[tuple[Stage, int], SectionBase]:
    return {
        (Stage(stage), manifest.generation): SectionBase(
            int.from_bytes(section.state_digest, "big"),
            tuple((count.kind, count.entities) for count in section.kinds),
        )
        for stage, section in sections(manifest)
    }


async def test_30_five_rounds() -> None:
    """Scenario 30: of five snapshots each holds the whole state of its own moment, to the end."""
    world = RealWorld(open_files(memory()))
    world.orchestrator.activate()
    states = {}
    for generation in range(1, 6):
        world.put(1, bytes((generation * 15,)))
        world.put(10 + generation, b"new")
        states[generation] = world.rows_now()
        assert await world.snapshot() == generation
    assert [rows[Stage.USERS][1][0] for rows in states.values()] == [15, 30, 45, 60, 75]
    for generation, state in states.items():
        world.check(generation, state)


async def test_30_five_deltas() -> None:
    """Each of five snapshots adds a layer with the rows that changed since the one before."""
    world = RealWorld(open_files(memory()))
    world.orchestrator.activate()
    for generation in range(1, 6):
        world.put(1, bytes((generation * 15,)))
        world.put(10 + generation, b"new")
        await world.snapshot()
    with world.stored.load(5) as loaded:
        assert loaded.manifest.parent_generation == 4
        for stage, section in sections(loaded.manifest):
            assert [layer.base_generation for layer in section.layers] == [0, 1, 2, 3, 4]
            assert [
                [int.from_bytes(key, "big") for _, key, _ in layer.entries()]
                for layer in loaded.layers[stage]
            ] == [[1, 10 + generation] for generation in range(1, 6)]


async def test_failed_one_is_folded() -> None:
    """The next generation holds what a failed one had frozen, and its chain has no hole."""
    world = RealWorld(open_files(memory()))
    world.put(1, b"one")
    world.put(2, b"two")
    world.orchestrator.activate()
    await world.snapshot()
    world.orchestrator.deactivate()
    world.put(1, b"changed")
    world.rows[Stage.USERS].drop(2)
    world.begin(2)
    await world.until_durable(2)
    world.command(FailSnapshot(2, "too slow"))
    await world.settle()
    assert world.stored.generations() == [1]
    world.put(3, b"three")
    states = world.rows_now()
    world.orchestrator.activate()
    assert await world.snapshot() == 3
    world.check(3, states)
    with world.stored.load(3) as loaded:
        assert [layer.base_generation for layer in loaded.manifest.users.layers] == [0, 1]
        assert loaded.manifest.parent_generation == 1


async def test_cut_before_the_release() -> None:
    """A generation that was cut before the last one was released is a delta against an older
    one."""
    world = RealWorld(open_files(memory()))
    world.orchestrator.activate()
    world.put(1, b"one")
    await world.snapshot()
    world.put(1, b"two")
    world.begin(2)
    await world.until_durable(2)
    await world.settle()
    world.sequence_proposals()
    world.put(3, b"three")
    states = world.rows_now()
    world.begin(3)  # generation 2 is completed, and not adopted yet
    await world.until(lambda: world.adopted == [1, 2, 3])
    world.check(3, states)
    with world.stored.load(3) as loaded:
        assert [layer.base_generation for layer in loaded.manifest.sessions.layers] == [0, 1]


async def test_restored_and_replayed() -> None:
    """A restored replica writes the cut that it replays onto its existing chain."""
    world = RealWorld(open_files(memory()))
    world.orchestrator.activate()
    world.put(1, b"one")
    await world.snapshot()
    world.put(1, b"lost with the process, and replayed")
    root = world.machine.current().root
    found = world.machine.current().tasks

    again = RealWorld(world.stored, adopted=1)
    again.command(CompleteSnapshot(1, root, found))
    again.put(1, b"lost with the process, and replayed")
    states = again.rows_now()
    again.begin(2)
    again.orchestrator.activate()
    await again.until(lambda: again.adopted == [2])
    again.check(2, states)


async def test_durable_before_the_restart() -> None:
    """A generation that was durable before the restart is compared, and kept."""
    world = RealWorld(open_files(memory()))
    world.put(1, b"one")
    world.begin(1)
    await world.until_durable(1)
    again = RealWorld(world.stored)
    again.put(1, b"one")
    again.begin(1)
    again.orchestrator.activate()
    await again.until(lambda: again.adopted == [1])
    again.check(1, again.rows_now())
    assert again.orchestrator.adopted_generation == 1


async def test_empty_sections() -> None:
    """A generation of an empty state has no layers at all, and the next one has bases."""
    world = RealWorld(open_files(memory()))
    world.orchestrator.activate()
    await world.snapshot()
    with world.stored.load(1) as loaded:
        assert [len(section.layers) for _, section in sections(loaded.manifest)] == [0] * len(
            STAGES
        )
    world.put(1, b"one")
    await world.snapshot()
    world.check(2, world.rows_now())
