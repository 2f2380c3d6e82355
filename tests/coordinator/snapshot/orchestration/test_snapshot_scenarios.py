"""The thirty scenarios of the snapshots that the design was learned from, one test each.

Its tasks are our stages, its commit listener our local work, its topic of snapshots our replicated
catalog with a view in SQLite. Each test names the differences that are intended.

   orchestrator
 1 conflicting task snapshot                     test_01_conflicting_task
 2 idempotent report                             test_02_equal_report
 3 wrong generation                              test_03_wrong_generation
 4 complete in one report                        test_04_complete_in_one_report
 5 complete across two reports                   test_05_complete_across_two_reports
 6 report after COMPLETED                        test_06_report_after_completed
 7 current generation                            test_07_current_generation
   commit listener
 8 skip a task that is on the current generation test_08_reported_section_is_not_read_again
 9 skip a task with uncommitted partitions       test_09_section_of_a_service_behind
10 checkpoint with the source topic's offset     test_10_section_of_a_service
11 checkpoint with the changelog's offset        test_11_section_of_the_mux
12 no offset where nothing was written           test_12_section_without_changes
13 error in reporting does not propagate         test_13_refused_report_ends_nothing
   integration
14 fresh store                                   test_14_fresh_store
15 create                                        test_15_create
16 create through a second store                 test_16_create_through_a_second_store
17 create while CREATED                          test_17_create_while_created
18 create after COMPLETED                        test_18_create_after_completed
19 partial report                                test_19_partial_report
20 conflicting checkpoints                       test_20_conflicting_digests
21 report after COMPLETED                        test_21_report_after_completed_in_the_store
22 all tasks reported                            test_22_all_tasks_reported
23 fail                                          test_23_fail
24 fail after COMPLETED                          test_24_fail_after_completed
   generation of a task
25 COMPLETED                                     test_25_lookup_when_decided
26 reported                                      test_26_lookup_when_reported
27 not reported                                  test_27_lookup_when_not_reported
   encodings
28 record                                        test_28_record_round_trip
29 key                                           test_29_key_round_trip
   whole system
30 five rounds, earlier states                   test_30_five_rounds (test_snapshot_real_files)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from coordinator.gateway.snapshots import SnapshotReads
from coordinator.mux.catalog import CatalogMachine
from coordinator.mux.catalog_types import (
    CatalogCounters,
    CutTaken,
    Restored,
    RetentionClass,
    Snapshot,
    SnapshotState,
)
from coordinator.mux.entities import SNAPSHOT_KIND, RestoreError
from coordinator.mux.mux import Mux
from coordinator.mux.stage import SERVICE_STAGES, STAGES, Stage
from coordinator.mux.types import QueryItem
from coordinator.snapshot import values
from coordinator.snapshot.sections import CutSections
from coordinator.snapshot.store import rebuild, view_of
from coordinator.stages.codec import ProtobufCodec
from coordinator.stages.entities import snapshot_of
from tests.coordinator.snapshot.orchestration.orchestra import (
    Frozen,
    OrchestratorTrial,
    primary,
    task,
    tasks,
)
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as pb
from viewstamp.errors import Refusal
from viewstamp.format.block import Block
from viewstamp.framing import frame_all, unframe
from viewstamp.machine.freezing import Entity
from viewstamp.snapshots import catalog_view
from viewstamp.snapshots.catalog_view import CATALOG_VIEW_FILE

LOOKUP = 464


@pytest.fixture
async def world() -> AsyncIterator[OrchestratorTrial]:
    """A primary with generation 1 cut, its sections held back by their services."""
    world = primary()
    world.services.hold()
    world.begin(1)
    yield world
    await world.close()


# --- The orchestrator ----------------------------------------------------------------------------


async def test_01_conflicting_task(world: OrchestratorTrial) -> None:
    """A task reported with other contents than before is refused, and nothing changes."""
    world.orchestrator.report(1, tasks(Stage.USERS))
    with pytest.raises(values.ConflictingReport):
        world.orchestrator.report(1, (task(Stage.STREAMS), task(Stage.USERS, digest=b"o" * 32)))
    assert world.orchestrator.reported(1) == tasks(Stage.USERS)


async def test_02_equal_report(world: OrchestratorTrial) -> None:
    """A repeated equal report counts once."""
    world.orchestrator.report(1, tasks(Stage.USERS))
    world.orchestrator.report(1, tasks(Stage.USERS))
    assert world.orchestrator.reported(1) == tasks(Stage.USERS)


@pytest.mark.parametrize("generation", [0, 2])
async def test_03_wrong_generation(world: OrchestratorTrial, generation: int) -> None:
    """A report about another generation, older or newer, is fenced off."""
    with pytest.raises(values.WrongGeneration):
        world.orchestrator.report(generation, tasks())
    assert world.orchestrator.reported(1) == ()


async def test_04_complete_in_one_report(world: OrchestratorTrial) -> None:
    """When all tasks are reported and the manifest is durable, the log completes the generation."""
    reports = tuple(task(stage, revision=world.revision) for stage in STAGES)
    world.orchestrator.report(1, reports)
    assert world.orchestrator.reported(1) == reports
    world.services.release()
    await world.until(lambda: world.states() == ["COMPLETED"])
    assert world.machine.current().tasks == reports


async def test_05_complete_across_two_reports(world: OrchestratorTrial) -> None:
    """Sections that end at different times complete it; the order is that of stages, not
    reports."""
    world.services.release(Stage.CATALOG, Stage.USERS)
    await world.until_reported(1, Stage.CATALOG, Stage.USERS)
    assert world.parsed_proposals() == []
    world.services.release()
    await world.until(lambda: world.states() == ["COMPLETED"])
    assert [each.stage for each in world.machine.current().tasks] == list(STAGES)


async def test_06_report_after_completed(world: OrchestratorTrial) -> None:
    """Nothing can be reported about a generation that is completed."""
    world.services.release()
    await world.until(lambda: world.adopted == [1])
    with pytest.raises(values.AlreadyDecided):
        world.orchestrator.report(1, tasks())


async def test_07_current_generation(world: OrchestratorTrial) -> None:
    """The current generation is the newest that the log knows, whatever its state."""
    assert world.orchestrator.current_generation() == 1
    world.services.release()
    await world.until(lambda: world.adopted == [1])
    assert world.orchestrator.current_generation() == 1
    assert world.create() == 2
    assert world.orchestrator.current_generation() == 2


# --- The local work ------------------------------------------------------------------------------


async def test_08_reported_section_is_not_read_again(world: OrchestratorTrial) -> None:
    """A reported section is not read again, however often another one has to be read."""
    world.services.release()
    world.services.away = {Stage.STREAMS: ["away", "away"]}
    await world.until(lambda: world.adopted == [1])
    assert world.services.reads.count((Stage.STREAMS, 1)) == 3
    assert [world.services.reads.count((s, 1)) for s in STAGES if s is not Stage.STREAMS] == (
        [1] * (len(STAGES) - 1)
    )


async def test_09_section_of_a_service_behind(world: OrchestratorTrial) -> None:
    """A service that is behind the cut is not reported; it is waited for and then read."""
    world.services.away = {Stage.USERS: ["replaying"]}
    world.services.release(*(stage for stage in STAGES if stage is not Stage.USERS))
    await world.until(
        lambda: len(world.orchestrator.reported(1)) == len(STAGES) - 1, sequencing=False
    )
    await world.until(lambda: world.services.waits == [Stage.USERS], sequencing=False)
    world.services.release()
    await world.until(lambda: world.states() == ["COMPLETED"])
    assert world.files.discarded == [(1, Stage.USERS)]


async def test_10_section_of_a_service(world: OrchestratorTrial) -> None:
    """The report of a service's section is that service's own summary."""
    world.services.release(Stage.STREAMS)
    await world.until_reported(1, Stage.STREAMS)
    (reported,) = world.orchestrator.reported(1)
    assert (reported.applied_revision, reported.state_digest) == (world.revision, b"d" * 32)


def _cut(sessions: Frozen) -> CutTaken:
    return CutTaken(1, 5, 2, 77, 5000, 1, sessions, Frozen(1))


async def _summary(stage: Stage, cut: CutTaken) -> tuple[int, domain_pb2.SectionSummary]:
    """Read a section of the mux; return its blocks' number and its summary."""
    sections = CutSections({}, lambda _: 1)
    *blocks, last = [part async for part in sections.read(stage, cut)]
    assert all(isinstance(part, Block) for part in blocks)
    assert isinstance(last, domain_pb2.SectionSummary)
    return len(blocks), last


async def test_11_section_of_the_mux() -> None:
    """Sessions and catalog, frozen in the mux, are as of the revision of the cut."""
    blocks, summary = await _summary(Stage.SESSIONS, _cut(Frozen(1, 0, ((1, b"k", None, b"v"),))))
    assert (blocks, summary.applied_revision, summary.kinds[0].entities) == (1, 77, 1)


async def test_12_section_without_changes() -> None:
    """A section in which nothing was ever written has a summary and no blocks."""
    blocks, summary = await _summary(Stage.SESSIONS, _cut(Frozen(1)))
    assert (blocks, summary.state_digest, list(summary.kinds)) == (0, bytes(32), [])


async def test_13_refused_report_ends_nothing(world: OrchestratorTrial) -> None:
    """A refused report fails its generation, and the replica takes the next one."""
    world.orchestrator.report(1, (task(Stage.USERS, digest=b"o" * 32),))
    world.services.release()
    await world.until(lambda: world.states() == ["FAILED"])
    assert "users" in world.machine.current().failure
    assert await world.snapshot() == 2


# --- The store -----------------------------------------------------------------------------------
#
# Theirs is a table that anybody updates in a transaction. Ours is the catalog machine: an update is
# a command in the log, and other processes read it from the view in SQLite.


async def _seen(world: OrchestratorTrial, directory: Path) -> list[Snapshot]:
    """Return the catalog as another process would read it, newest first."""
    catalog = world.machine.list_after(0, 1000)
    view = view_of((1, 1), catalog, world.orchestrator.reported, {})
    await rebuild(directory / CATALOG_VIEW_FILE, view)
    return [snapshot_of(each) for each in catalog_view.read(directory).snapshots]


async def test_14_fresh_store(tmp_path: Path) -> None:
    """A fresh catalog shows generation 0, completed, and never lists it."""
    world = primary()
    assert world.machine.current() == values.initial() == world.machine.latest_completed()
    assert await _seen(world, tmp_path) == list(world.machine.list_after(0, 10)) == []


async def test_15_create() -> None:
    """A created generation is generation 1, CREATED, and visible."""
    world = primary()
    assert world.create() == 1
    assert world.states() == ["CREATED"]
    assert world.machine.current() == world.machine.get(1)


async def test_16_create_through_a_second_store(tmp_path: Path) -> None:
    """Every reader of the view sees a created generation."""
    world = primary()
    assert await _seen(world, tmp_path) == []
    world.create()
    assert await _seen(world, tmp_path) == [world.machine.current()]


async def test_17_create_while_created() -> None:
    """While a generation is under way the log creates no other."""
    world = primary()
    world.create()
    with pytest.raises(Refusal, match="under way"):
        world.create()
    assert world.states() == ["CREATED"]


async def test_18_create_after_completed(tmp_path: Path) -> None:
    """After a completed generation comes generation 2."""
    world = primary()
    await world.snapshot()
    assert world.create() == 2
    assert [(s.generation, s.state.name) for s in await _seen(world, tmp_path)] == [
        (2, "CREATED"),
        (1, "COMPLETED"),
    ]


async def test_19_partial_report(world: OrchestratorTrial, tmp_path: Path) -> None:
    """A generation with some tasks reported is still CREATED, and has them."""
    world.orchestrator.report(1, tasks(Stage.USERS, Stage.SESSIONS))
    (current,) = await _seen(world, tmp_path)
    assert current.state is SnapshotState.CREATED
    assert current.tasks == tasks(Stage.SESSIONS, Stage.USERS)


async def test_20_conflicting_digests(world: OrchestratorTrial, tmp_path: Path) -> None:
    """A task with another digest than before is refused, and the view stays as it was."""
    world.orchestrator.report(1, tasks(Stage.USERS))
    with pytest.raises(values.ConflictingReport):
        world.orchestrator.report(1, (task(Stage.USERS, digest=b"o" * 32),))
    assert (await _seen(world, tmp_path))[0].tasks == tasks(Stage.USERS)


async def test_21_report_after_completed_in_the_store(
    world: OrchestratorTrial, tmp_path: Path
) -> None:
    """Nothing is added to a completed generation."""
    world.services.release()
    await world.until(lambda: world.adopted == [1])
    before = await _seen(world, tmp_path)
    with pytest.raises(values.AlreadyDecided):
        world.orchestrator.report(1, (task(Stage.USERS, digest=b"o" * 32),))
    assert await _seen(world, tmp_path) == before
    assert before[0].state is SnapshotState.COMPLETED


async def test_22_all_tasks_reported(world: OrchestratorTrial, tmp_path: Path) -> None:
    """With all tasks reported nothing is missing; then only the log completes ours."""
    world.orchestrator.report(1, tasks(*STAGES))
    (current,) = await _seen(world, tmp_path)
    assert values.missing_tasks(current, STAGES) == ()
    assert current.state is SnapshotState.CREATED
    other = primary()
    await other.snapshot()
    assert other.states() == ["COMPLETED"]


async def test_23_fail(world: OrchestratorTrial) -> None:
    """When a task gives up a generation the log fails it for good."""
    world.orchestrator.fail(1, "broken for good")
    await world.until(lambda: world.states() == ["FAILED"])
    assert world.machine.current().failure == "broken for good"
    world.orchestrator.fail(1, "again")


async def test_24_fail_after_completed(world: OrchestratorTrial) -> None:
    """A completed generation cannot be given up."""
    world.services.release()
    await world.until(lambda: world.adopted == [1])
    with pytest.raises(values.AlreadyDecided):
        world.orchestrator.fail(1, "too late")


# --- The generation of a task --------------------------------------------------------------------


def reached(world: OrchestratorTrial, stages: Iterable[Stage]) -> list[int]:
    """Return what LookupGeneration answers for each stage."""
    reads = SnapshotReads(world.machine, world.orchestrator.reported, follow=fail_at_once)
    requests = [pb.LookupGenerationRequest(stage=int(stage)) for stage in stages]  # type: ignore[arg-type]
    items = [request.SerializeToString() for request in requests]
    item = QueryItem(1, LOOKUP, len(items), frame_all(items), 0, 1, 0, (), b"")
    outcome = reads.query(item)
    assert not outcome.errors
    return [pb.LookupGenerationResponse.FromString(r).generation for r in unframe(outcome.results)]


def fail_at_once(outcome: object) -> None:
    """These reads wait for nothing."""
    raise AssertionError(f"followed later: {outcome}")


@pytest.mark.parametrize("is_failed", [False, True])
async def test_25_lookup_when_decided(world: OrchestratorTrial, is_failed: bool) -> None:
    """Once a generation is decided every task has reached it."""
    if is_failed:
        world.orchestrator.fail(1, "broken for good")
    else:
        world.services.release()
    await world.until(lambda: world.states() == ["FAILED" if is_failed else "COMPLETED"])
    assert reached(world, STAGES) == [1] * len(STAGES)


async def test_26_lookup_when_reported(world: OrchestratorTrial) -> None:
    """A task that was reported has reached the generation that is under way."""
    world.services.release(*SERVICE_STAGES)
    await world.until_reported(1, *SERVICE_STAGES)
    assert reached(world, SERVICE_STAGES) == [1] * len(SERVICE_STAGES)


async def test_27_lookup_when_not_reported(world: OrchestratorTrial) -> None:
    """A task that was not reported is at the previous generation."""
    assert reached(world, STAGES) == [0] * len(STAGES)


# --- Encodings -----------------------------------------------------------------------------------

FULL = Snapshot(
    generation=2**40,
    state=SnapshotState.FAILED,
    cut_op=2**41,
    cut_revision=2**42,
    root=bytes(range(32)),
    tasks=tasks(Stage.SESSIONS, Stage.CATALOG),
    created_at=2**50,
    retention=RetentionClass.PINNED,
    failure="why — at length",
    decided_at=2**51,
    keep_last=4,
    keep_daily=9,
    kept_until=2**52,
    modified_revision=2**51,
)


async def test_28_record_round_trip(tmp_path: Path) -> None:
    """A generation read from the view equals the written one, field by field."""
    assert all(getattr(FULL, name) for name in FULL.__slots__)
    view = view_of((2**43, 2**44), (FULL,), lambda _: (), {})
    await rebuild(tmp_path / CATALOG_VIEW_FILE, view)
    assert [snapshot_of(each) for each in catalog_view.read(tmp_path).snapshots] == [FULL]


def catalog_of(generation: int) -> list[Entity]:
    """Return the section of a catalog with one generation: that one, and the counters."""
    machine = CatalogMachine(ProtobufCodec())
    under_way = Snapshot(generation, SnapshotState.CREATED, keep_last=1)
    machine.load((under_way, CatalogCounters(generation)))
    return list(machine.entities())


def restored_from(catalog: list[Entity]) -> Mux:
    """Return a mux that starts with the section of a catalog."""
    place = Restored(1, 1, limits.FEATURE_LEVEL_MAX, 0, (), catalog)
    return Mux({}, ProtobufCodec(), restored=place)


@pytest.mark.parametrize(
    ("generation", "key"),
    [
        (1, "0000000000000001"),
        (255, "00000000000000ff"),
        (256, "0000000000000100"),
        (2**40, "0000010000000000"),
    ],
)
def test_29_key_round_trip(generation: int, key: str) -> None:
    """A generation is stored under its number, big-endian, and read back from there."""
    catalog = catalog_of(generation)
    assert [(kind, stored.hex()) for kind, stored, _ in catalog[:1]] == [(SNAPSHOT_KIND, key)]
    found = restored_from(catalog).catalog.list_after(0, 9)
    assert [each.generation for each in found] == [generation]


def test_29_foreign_key() -> None:
    """A generation under the key of another is refused, and not taken for either."""
    (kind, _, canonical), counters = catalog_of(8)
    (_, other_key, _), _ = catalog_of(7)
    with pytest.raises(RestoreError, match="says that it has kind and key"):
        restored_from([(kind, other_key, canonical), counters])


def test_29_keys_in_order() -> None:
    """Keys ascend as the numbers of their generations do, across the bounds of bytes, too."""
    numbers = (1, 2, 255, 256, 65_535, 65_536, 2**40)
    keys = [catalog_of(number)[0][1] for number in numbers]
    assert keys == sorted(keys)


def test_entity_round_trip() -> None:
    """A generation in the section of the catalog equals the one that was written, whole."""
    canonical = ProtobufCodec().encode_entity(FULL)
    assert ProtobufCodec().decode_catalog_entity(SNAPSHOT_KIND, canonical) == FULL
