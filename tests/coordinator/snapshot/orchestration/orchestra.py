"""One replica's orchestrator over the real catalog machine; log, files and services are faked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.mux.catalog import CatalogMachine
from coordinator.mux.catalog_types import (
    BeginSnapshot,
    CatalogCommand,
    CreateSnapshot,
    CutTaken,
    Snapshot,
    TaskSnapshot,
)
from coordinator.mux.sessions import SessionApplied, SessionRefused
from coordinator.mux.stage import STAGES, Stage
from coordinator.snapshot.agreement import Reports
from coordinator.snapshot.decisions import LocalState
from coordinator.snapshot.orchestrator import LocalSnapshotOrchestrator, Ports, SnapshotWork
from coordinator.snapshot.sections import (
    GenerationFailed,
    SectionHead,
    SectionPart,
    SectionUnavailable,
)
from coordinator.snapshot.triggers import ReplicaLoad, SnapshotTriggers, TriggerSettings
from coordinator.snapshot.work import Durable, LocalCut, LocalWork
from coordinator.stages.catalog_codec import CATALOG_PARSERS
from coordinator.stages.codec import ProtobufCodec
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.errors import Refusal
from viewstamp.format.block import Block
from viewstamp.limits import FEATURE_LEVEL_MAX
from viewstamp.machine.freezing import Change

CHECKSUM = b"c" * 16
ROUNDS_MAX = 100_000


def task(stage: Stage, *, revision: int = 1, digest: bytes = b"d" * 32) -> TaskSnapshot:
    """Return a report of a task."""
    return TaskSnapshot(stage, revision, digest, 3, 100)


def tasks(*stages: Stage) -> tuple[TaskSnapshot, ...]:
    """Return reports of tasks; all of them if none is named."""
    return tuple(map(task, stages or STAGES))


@dataclass(frozen=True)
class Frozen:
    """The frozen changes of one section of the mux."""

    generation: int
    base_generation: int = 0
    frozen: tuple[Change, ...] = ()

    def walk(self) -> Any:
        """Yield the changes."""
        return iter(self.frozen)


class Services:
    """Sections that the test holds back, breaks, or lets through: one block and a summary each."""

    def __init__(self) -> None:
        """Begin with all sections available."""
        self.away: dict[Stage, list[str]] = {}
        self.open = {stage: asyncio.Event() for stage in STAGES}
        self.reads: list[tuple[Stage, int]] = []
        self.all_reading = asyncio.Event()
        self.waits: list[Stage] = []
        self.digest = b"d" * 32
        self.base_generation = 0
        self.expected_base_generation = 0
        self.beyond = 0
        self.ends_early = False
        self.release()

    def hold(self) -> None:
        """Keep every section from ending."""
        for event in self.open.values():
            event.clear()

    def release(self, *stages: Stage) -> None:
        """Let sections end, all of them if none is named."""
        for stage in stages or STAGES:
            self.open[stage].set()

    async def wait(self, stage: Stage) -> None:
        """Replace the wait until a service is back."""
        self.waits.append(stage)

    def expected(self, stage: Stage, cut: CutTaken) -> SectionHead:
        """Set the head that the section will be counted from."""
        return SectionHead(1, self.expected_base_generation)

    async def read(self, stage: Stage, cut: CutTaken) -> AsyncGenerator[SectionPart]:
        """Yield one block, then what the test has set."""
        self.reads.append((stage, cut.generation))
        if len(self.reads) == len(STAGES):
            self.all_reading.set()
        yield Block(b"", 1, 0, 0, (0, b""), (0, b""))
        if self.away.get(stage):
            raise SectionUnavailable(self.away[stage].pop())
        await self.open[stage].wait()
        if self.ends_early:
            return
        yield domain_pb2.SectionSummary(
            generation=cut.generation,
            base_generation=self.base_generation,
            applied_revision=cut.revision + self.beyond,
            section_version=1,
            state_digest=self.digest,
            kinds=[domain_pb2.KindCount(kind=1, entities=3)],
        )


class FakeFiles:
    """Files in memory, with a record of all calls."""

    def __init__(self) -> None:
        """Begin empty."""
        self.durable: dict[int, Durable] = {}
        self.deleted: list[int] = []
        self.written: list[int] = []
        self.blocks: list[tuple[int, Stage]] = []
        self.discarded: list[tuple[int, Stage]] = []
        self.full = ""
        self.bug: Exception | None = None

    def find(self, generation: int) -> Durable | None:
        """Return a generation that exists."""
        return self.durable.get(generation)

    def begin(self, cut: LocalCut) -> FakeWriter:
        """Begin a generation."""
        if self.bug is not None:
            raise self.bug
        return FakeWriter(self, cut)

    def delete(self, generation: int) -> None:
        """Delete a generation."""
        self.deleted.append(generation)
        self.durable.pop(generation, None)


@dataclass
class FakeWriter:
    """A generation being written."""

    files: FakeFiles
    cut: LocalCut
    done: dict[Stage, TaskSnapshot] = field(default_factory=dict)

    def section(self, stage: Stage, head: SectionHead) -> FakeSection:
        """Begin a section."""
        return FakeSection(self, stage, head)

    def finish_section(
        self, stage: Stage, section: FakeSection, summary: domain_pb2.SectionSummary
    ) -> TaskSnapshot:
        """Keep the summary."""
        assert summary.base_generation == section.head.base_generation
        done = TaskSnapshot(stage, summary.applied_revision, summary.state_digest, 3, 100)
        self.done[stage] = done
        return done

    def finish(self) -> bytes:
        """Make it durable."""
        if self.files.full:
            raise GenerationFailed(self.files.full)
        taken = self.cut.taken
        found = tuple(self.done[stage] for stage in sorted(self.done))
        root = b"".join(each.state_digest for each in found)[:32]
        self.files.written.append(taken.generation)
        self.files.durable[taken.generation] = Durable(
            taken.generation, taken.op, self.cut.checksum, root, found
        )
        return root


@dataclass
class FakeSection:
    """A section in the making."""

    writer: FakeWriter
    stage: Stage
    head: SectionHead

    def add(self, block: Block) -> bool:
        """Have every block written as it comes, so that there is much to undo."""
        return True

    def write(self) -> None:
        """Count a block."""
        self.writer.files.blocks.append((self.writer.cut.taken.generation, self.stage))

    def discard(self) -> None:
        """Forget it."""
        self.writer.files.discarded.append((self.writer.cut.taken.generation, self.stage))


class OrchestratorTrial:
    """A replica that follows its own log. Proposals wait until `sequence_proposals`."""

    def __init__(
        self,
        settings: TriggerSettings | None = None,
        files: FakeFiles | None = None,
        machine: CatalogMachine | None = None,
        adopted: Durable | None = None,
        work: SnapshotWork | None = None,
        reports: Reports | None = None,
    ) -> None:
        """Begin as the primary of an empty cluster, or behind an adopted generation.

        `reports` say which of several replicas it is; otherwise it is alone.
        """
        self.now_ms = 0
        self.op = self.revision = 10
        self.machine = machine or CatalogMachine(ProtobufCodec())
        self.machine.take_changes()
        self.files = files or FakeFiles()
        self.services = Services()
        self.adopted: list[int] = []
        self.adopting = asyncio.Event()
        self.adopting.set()
        self.proposed: list[tuple[int, bytes]] = []
        self.published: list[Snapshot] = []
        self.alarms: list[str] = []
        self.told: list[Durable] = []  # to the primary, about durable generations
        self.last_words: list[Durable] = []  # to all, about a diverged replica
        self.diverged: list[str] = []  # alarms about other replicas
        self.disk_full = False
        self.item_log_bytes = self.journal_bytes = 0
        self.triggers = SnapshotTriggers(settings or TriggerSettings())
        self.work: SnapshotWork = work or LocalWork(self.services, self.files, self.services.wait)
        self.orchestrator = LocalSnapshotOrchestrator(
            self._ports(),
            self.triggers,
            lambda: self.now_ms,
            adopted,
            self.machine.list_after(0, 1000),
            reports=reports,
        )

    def _ports(self) -> Ports:
        return Ports(
            work=self.work,
            adopt=self.adopt,
            propose=self._propose,
            publish=self.published.append,
            next_generation=lambda: self.machine.last_generation + 1,
            load=self.load,
            failed=self.alarms.append,
            completed=lambda _: self.alarms.clear(),
            tell_primary=self.told.append,
            tell_others=self.last_words.append,
            diverged=lambda replica, generation, why: self.diverged.append(why),
        )

    async def adopt(self, generation: int) -> None:
        """Remember the adopted generation, once the test allows it."""
        await self.adopting.wait()
        self.adopted.append(generation)

    def _propose(self, code: int, request: bytes) -> None:
        if (code, request) not in self.proposed:
            self.proposed.append((code, request))

    def load(self) -> ReplicaLoad:
        """Return the replica's holdings."""
        return ReplicaLoad(
            self.now_ms, self.revision, self.journal_bytes, self.item_log_bytes, self.disk_full
        )

    # --- The log ---

    def command(self, command: CatalogCommand) -> SessionApplied | SessionRefused:
        """Sequence, apply and apply a command, and report it to the orchestrator."""
        self.op += 1
        self.revision += 1
        place = (self.revision, self.op, self.op * 1000, FEATURE_LEVEL_MAX)
        verdict = self.machine.apply(command, *place)
        changes = self.machine.take_changes()
        if isinstance(command, BeginSnapshot) and changes:
            self.orchestrator.cut_taken(self.cut(command.generation), CHECKSUM)
        if changes:
            changed = tuple(snapshot for snapshot in changes.values() if snapshot is not None)
            deleted = tuple(g for g, snapshot in changes.items() if snapshot is None)
            self.orchestrator.catalog_changed(changed, deleted)
        return verdict

    def cut(self, generation: int) -> CutTaken:
        """Return the cut of a generation at the current op."""
        base = self.orchestrator.adopted_generation
        return CutTaken(
            generation=generation,
            op=self.op,
            view=2,
            revision=self.revision,
            timestamp=self.op * 1000,
            feature_level=FEATURE_LEVEL_MAX,
            sessions=Frozen(generation, base),
            catalog=Frozen(generation, base),
        )

    def create(self) -> int:
        """Request a snapshot and return its number. Raises Refusal."""
        verdict = self.command(CreateSnapshot())
        if isinstance(verdict, SessionRefused):
            raise Refusal.from_error(errors_pb2.Error.FromString(verdict.error))
        return self.machine.last_generation

    def begin(self, generation: int) -> None:
        """Cut a generation."""
        self.command(BeginSnapshot(generation, 5, 0))

    def parsed_proposals(self) -> list[CatalogCommand]:
        """Return the commands that were proposed and not sequenced."""
        return [CATALOG_PARSERS[code](request) for code, request in self.proposed]

    def sequence_proposals(self) -> None:
        """Sequence the proposed commands."""
        commands = self.parsed_proposals()
        self.proposed.clear()
        for each in commands:
            self.command(each)

    # --- Progress ---

    async def settle(self) -> None:
        """Have the orchestrator look once."""
        await self.orchestrator.settle()

    async def until(self, condition: Callable[[], bool], *, sequencing: bool = True) -> None:
        """Go on, sequencing the proposed commands, until a condition holds."""
        for _ in range(ROUNDS_MAX):
            await self.orchestrator.settle()
            if condition():
                return
            if sequencing:
                self.sequence_proposals()
            await asyncio.sleep(0)
        raise AssertionError(f"it never came to that: {self.machine.current()}")

    async def until_reported(self, generation: int, *stages: Stage) -> None:
        """Go on until these tasks were reported here."""
        wanted = frozenset(stages or STAGES)
        await self.until(
            lambda: wanted <= {t.stage for t in self.orchestrator.reported(generation)},
            sequencing=False,
        )

    async def until_durable(self, generation: int) -> None:
        """Go on without sequencing until a generation is durable here."""
        await self.until(
            lambda: self.orchestrator.local_state(generation) is LocalState.DURABLE,
            sequencing=False,
        )

    async def snapshot(self) -> int:
        """Take a whole snapshot and adopt it."""
        generation = self.create()
        await self.until(lambda: generation in self.adopted)
        return generation

    def states(self) -> Sequence[str]:
        """Return the states of all generations, oldest first."""
        return [s.state.name for s in reversed(self.machine.list_after(0, 1000))]

    async def close(self) -> None:
        """End all work, as the end of the process does."""
        running = asyncio.ensure_future(self.orchestrator.run())
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def primary(**arguments: Any) -> OrchestratorTrial:
    """Return a replica that is the primary."""
    world = OrchestratorTrial(**arguments)
    world.orchestrator.activate()
    return world
